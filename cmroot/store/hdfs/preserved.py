"""Names of the attributes that a copy of a file on HDFS may get from its source."""

from __future__ import annotations

from typing import Literal, get_args

Attribute = Literal["owner", "mode", "acl", "replication", "xattr"]
ATTRIBUTES: tuple[str, ...] = get_args(Attribute)
