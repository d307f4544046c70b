"""The service: runs the jobs of the configuration, and serves the API, metrics, health and pages over HTTP.

Imports all rooms but `cli`. Begin with `scheduler.py`, then `web/app.py`.
"""
