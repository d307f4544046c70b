"""Files of a load: copied, compared, renamed and recycled in Spark tasks."""
