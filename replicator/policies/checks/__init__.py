"""Checks of a policy, before its first run and later."""
