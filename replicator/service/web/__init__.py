"""The service over HTTP: API, metrics, health, and pages."""
