"""Point-in-time restore of databases and tables."""
