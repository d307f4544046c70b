"""A config store of a test: keys and their files, written as a deploy would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VERSION = "2.0"


def write_store(place: Path, files: Mapping[str, str], version: str = VERSION) -> str:
    """`files`: name below the version -> text. Returns the store's URI."""
    top = place / "_CONFIG_STORE"
    (top / version).mkdir(parents=True, exist_ok=True)
    (top / "store-metadata.conf").write_text(f'config.hdfs.store.version.current = "{version}"\n')
    for name, text in files.items():
        file = top / version / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return f"simple-file://{place}"
