"""What a command tells while it works: its steps, and what they are about."""
