"""The search for rows with Spark, and Spark's proof of rewritten files."""
