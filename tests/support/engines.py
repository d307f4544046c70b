"""Threads instead of Spark, for tests of what is done and not where."""

from __future__ import annotations

from typing import Any

from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine


def local_engine() -> AutoEngine:
    return AutoEngine(LocalEngine(2), SparkEngine("local[2]"), choice="local")


def local_runtime(**more: Any) -> Runtime:
    """more: fields of the runtime."""
    return Runtime(local_engine(), **more)
