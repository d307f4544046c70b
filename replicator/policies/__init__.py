"""Policies: their runs, plans, history, schedule and lag."""
