"""`python -m replicator`, and `spark-submit .../replicator/__main__.py`: the command line."""

import atexit
import os
import sys
from importlib import import_module
from os.path import abspath, dirname

if __name__ == "__main__":
    here = dirname(abspath(__file__))  # which Python puts first for a file, and in which our modules hide others
    sys.path[:] = [place for place in sys.path if abspath(place) != here]
    if {"SPARK_YARN_STAGING_DIR", "PYSPARK_GATEWAY_PORT"} <= os.environ.keys():  # in YARN's cluster mode
        atexit.register(lambda: import_module("replicator.core.spark").start_for_yarn())
    import_module("replicator.cli.main").main()
