"""The decisions of a load, before it changes anything."""
