"""Authentication of the service: tokens, sessions, trusted proxies, and limits of size and time of requests."""
