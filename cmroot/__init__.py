"""The change-management root: retained file contents and the captured log. Imports nothing of `replicator`. Begin with
`root.py`, the layout; `store/` accesses local disks and object stores, `log/` has the captured log, `keep/` retains
contents, `expire/` deletes those that are no longer required.
"""

import sys
from os.path import dirname, isdir, join

LIBRARIES = "replicator-libraries"
"""A directory next to the zip file from which executors of a cluster import this package: libraries that they lack."""

_archive = dirname(dirname(__file__))
_libraries = join(dirname(_archive), LIBRARIES)
if _archive.endswith(".zip") and isdir(_libraries) and _libraries not in sys.path:
    sys.path.append(_libraries)
