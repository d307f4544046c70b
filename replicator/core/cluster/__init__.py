"""Nodes of a Spark cluster: what their Python has, and what it is given."""
