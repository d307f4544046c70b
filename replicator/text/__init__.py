"""Foreign text, read and written: names, quantities, Java properties, SQL, filters."""
