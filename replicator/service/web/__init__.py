"""The service over HTTP: API, metrics, health, and a page."""
