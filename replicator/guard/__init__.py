"""Guard rails of the jobs that remove: what may go, how much of it, who forbids it, and the record of what went."""
