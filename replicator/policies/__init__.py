"""Policies: their runs, plans, memory, schedule and lag."""
