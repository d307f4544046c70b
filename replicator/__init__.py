"""Replication and change management for Hive-metastore warehouses: dump, load, verify.

The functions of `replicator.api` are here too, imported at first use: importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_FUNCTIONS = ("capture", "check", "repair", "restore", "verify", "verify_sample", "wait", "status", "engines", "plan",
              "apply", "dump", "load", "sync", "lag", "switchover", "failover", "failback", "drill")  # fmt: skip
_MODULES = ("cm", "lives")  # functions of groups of commands


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module("replicator.api"), name)
    if name in _MODULES:
        return import_module(f"replicator.{name}")
    raise AttributeError(f"module 'replicator' has no attribute {name!r}")
