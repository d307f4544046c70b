"""The commands: each verb once, as options and a function that returns a report.

Imports all rooms but `cli`. Begin with `base.py`, then one command, such as `replication.py`.
"""
