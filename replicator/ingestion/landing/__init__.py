"""Landing: copied rows verified, settled, and made those of a table of the warehouse, step by step."""
