"""HDFS: its client and its store."""
