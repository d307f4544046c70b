"""Files of a drop zone as tables: their description, one moment of them, rows, nested rows, figures."""
