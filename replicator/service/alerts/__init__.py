"""Alerts: what is wrong, told once, again now and then, and when it is over."""
