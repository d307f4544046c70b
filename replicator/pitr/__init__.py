"""Point in time: databases and tables restored as they were at a position."""
