"""Pages about roots, tables, removals, purges and drills."""
