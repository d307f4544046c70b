"""The replay of a dump on a target."""
