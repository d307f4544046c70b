"""Checks of a policy, before its first run and at any time."""
