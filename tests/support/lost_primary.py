"""A primary that is lost: its metastore is not there, nor is its root, and something was captured before."""

from __future__ import annotations

from engines import local_runtime
from lab import Lab

from cmroot.root import open_existing
from replicator.captures.capture import CaptureSettings, capture
from replicator.metastore.thrift import connect


def nobody(port: int = 1) -> str:
    """A metastore that is not there: no server of a test gets such a port."""
    return f"thrift://127.0.0.1:{port}"


def lose(pair: Lab, uri: str, *, root: bool = False) -> None:
    """The source's metastore is at this address from now on; its `$cmroot` is gone, too, if so said."""
    pair.keys["source"], pair.source.metastore = uri, connect(uri)
    if root:
        (pair.here / "cmroot").rename(pair.here / "cmroot-lost")


def captured(pair: Lab) -> None:
    """A capture without a load."""
    capture(pair.source.metastore, open_existing(str(pair.here / "cmroot")), CaptureSettings(), local_runtime())
