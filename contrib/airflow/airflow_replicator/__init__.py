"""Replication of Hive metastores from Apache Airflow. The data path is replicator's; here is only how it is called."""

__version__ = "0.1.0"
