"""Encryption zones of HDFS: directories whose files are encrypted by their writers, with keys of a key server (KMS)."""

from __future__ import annotations

from cmroot.store.hdfs.checksums import ask
from cmroot.store.spelling import scheme


def in_zone(directory: str) -> bool:
    """Whether files that are made in a directory of any store are encrypted so; not where it is not there. One request
    (WebHDFS). Raises OSError with the NameNode's reason."""
    if scheme(directory) != "hdfs":
        return False
    try:
        return bool(ask(directory, "GETFILESTATUS")["FileStatus"].get("encBit"))
    except FileNotFoundError:
        return False
