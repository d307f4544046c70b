"""A HOCON parser that records the file and line of each value."""
