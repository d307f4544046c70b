"""The entry for `spark-submit`: `spark-submit .../replicator/cli/submit.py load ...` is `replicator load ...`."""

import sys
from importlib import import_module
from os.path import abspath, dirname

if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if abspath(place) != dirname(abspath(__file__))]  # Python puts it first
    import_module("replicator.cli.main").main()
