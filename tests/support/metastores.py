"""The type of the fixture that starts metastores; a module of its own, because there are several conftest.py."""

from collections.abc import Callable

from replicator.metastore.embedded.running import Running

MetastoreFactory = Callable[..., Running]
