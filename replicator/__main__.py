"""`python -m replicator`, and `spark-submit .../replicator/__main__.py`: the command line."""

import sys
from importlib import import_module
from os.path import abspath, dirname

if __name__ == "__main__":
    here = dirname(abspath(__file__))  # which Python puts first for a file, and in which our modules hide others
    sys.path[:] = [place for place in sys.path if abspath(place) != here]
    import_module("replicator.cli.main").main()
