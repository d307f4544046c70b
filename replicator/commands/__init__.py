"""The commands: each verb once, as options and a function that returns a report."""
