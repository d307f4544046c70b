"""Housekeeping: data that nobody refers to any more, and tables' time to live, by Beekeeper's table properties."""
