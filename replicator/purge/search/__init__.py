"""Rows found with Spark, and the proof by Spark of files written in their place."""
