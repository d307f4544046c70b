"""Configuration of the service: its jobs, their times, its state, its alerts."""
