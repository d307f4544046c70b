"""Files of a drop zone as tables: description, snapshot, rows, nested rows, checksums."""
