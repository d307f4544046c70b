"""The change-management root: kept bytes and the captured log. Stands alone."""

import sys
from os.path import dirname, isdir, join

LIBRARIES = "replicator-libraries"
"""A directory beside the zip file from which executors of a cluster import this package: libraries that they lack."""

_archive = dirname(dirname(__file__))
_libraries = join(dirname(_archive), LIBRARIES)
if _archive.endswith(".zip") and isdir(_libraries) and _libraries not in sys.path:
    sys.path.append(_libraries)
