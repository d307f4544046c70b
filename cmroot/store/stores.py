"""Which store holds a place that is not local."""

from __future__ import annotations

from cmroot.store.hdfs import SCHEMES, HdfsStore
from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import scheme


def remote_store(place: str) -> FsspecStore:
    """The store of a place, which names it; not of a local one."""
    return HdfsStore(place) if scheme(place) in SCHEMES else FsspecStore(place)
