"""Settings of retention: stores, dates, periods, names."""
