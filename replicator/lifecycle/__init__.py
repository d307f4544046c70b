"""What becomes of captured data later on: a database or table as it was."""
