"""The search for rows with Spark, and Spark's verification of rewritten files."""
