"""Queries over HTTP: GET endpoints, each mapped to the command that computes its response."""
