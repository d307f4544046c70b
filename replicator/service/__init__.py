"""The service: runs what the configuration schedules, and answers over HTTP: API, metrics, health."""
