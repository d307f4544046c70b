"""Pages about roots, tables, removals, purges and drills: what is kept, what goes, and what was."""
