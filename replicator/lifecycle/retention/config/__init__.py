"""Configuration of retention: stores, dates, periods, names."""
