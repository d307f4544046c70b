"""The captured log: parts, segments, and references to contents."""
