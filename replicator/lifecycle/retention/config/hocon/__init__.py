"""A HOCON parser whose values know their file and line."""
