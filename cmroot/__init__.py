"""The change-management root: kept bytes and the captured log.

Imports nothing of `replicator`. Begin with `root.py`, the layout; `store/` reads and writes places, `log/` has the
captured log, `keep/` retains bytes, `expire/` deletes those that nothing needs.
"""

import sys
from os.path import dirname, isdir, join

LIBRARIES = "replicator-libraries"
"""A directory beside the zip file from which executors of a cluster import this package: libraries that they lack."""

_archive = dirname(dirname(__file__))
_libraries = join(dirname(_archive), LIBRARIES)
if _archive.endswith(".zip") and isdir(_libraries) and _libraries not in sys.path:
    sys.path.append(_libraries)
