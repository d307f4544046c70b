"""Which store holds a place that is not local."""

from __future__ import annotations

from cmroot.errors import UnknownPlace
from cmroot.store.hdfs.hdfs_store import SCHEMES, HdfsStore
from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import refuse_credentials, scheme


def remote_store(place: str) -> FsspecStore:
    """The store of a place, which names it; not of a local one."""
    refuse_credentials(place)
    if scheme(place) == "arrow_hdfs":
        raise UnknownPlace(f"{place}: its driver cannot replace a file in one step", hint="write hdfs:// instead")
    return HdfsStore(place) if scheme(place) in SCHEMES else FsspecStore(place)
