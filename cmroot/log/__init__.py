"""The captured log: parts, segments, and the references that they hold."""
