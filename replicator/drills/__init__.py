"""Drills: the replica promoted for a rehearsal, in databases of its own."""
