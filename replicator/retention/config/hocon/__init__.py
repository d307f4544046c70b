"""HOCON, read into values that know their file and line."""
