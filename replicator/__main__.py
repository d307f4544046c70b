"""`python -m replicator`: the command line."""

from __future__ import annotations

from replicator.cli.main import main

if __name__ == "__main__":
    main()
