"""Parsing and formatting: names, quantities, Java properties, SQL, filters."""
