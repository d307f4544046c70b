"""Files of a load: copied, compared, named and recycled in tasks."""
