"""Dumps that somebody changed with care: whatever is edited, every checksum is right again. And the world around,
reported by an independent walk: what a load was given to change, and that nothing else did."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

RECORDS, TABLES, FILES = "_metadata/records-00000.jsonl.gz", "_metadata/tables.jsonl.gz", "_files/bucket-0000.parquet"

World = dict[str, tuple[Any, ...]]


def world(*tops: Path, but: Iterable[Path] = ()) -> World:
    """Everything below some directories: kind, mode and content of each name. Links are named, never followed.
    `but`: places whose content is no business of the walk."""
    left_out = {os.fspath(place) for place in but}
    found: World = {}
    waiting = [os.fspath(top) for top in tops]
    while waiting:
        path = waiting.pop()
        if path in left_out:
            continue
        status = os.lstat(path)
        if os.path.islink(path):
            found[path] = ("link", os.readlink(path))
        elif os.path.isdir(path):
            found[path] = ("directory", status.st_mode)
            waiting += [os.path.join(path, name) for name in os.listdir(path)]
        elif os.path.isfile(path):
            found[path] = ("file", status.st_mode, hashlib.md5(Path(path).read_bytes()).hexdigest())
        else:
            found[path] = ("other", status.st_mode)
    return found


def reseal(directory: Path, marker: str = "_dumpmetadata") -> None:
    """Sizes and checksums of a directory of parts as its marker must say them, and of the marker as `_finished_dump`
    must. Parts that are not there, or not below the directory, keep what is said of them."""
    path = directory / marker
    output = json.loads(path.read_bytes())
    for part in output["parts"]:
        place = directory / part["name"]
        if ".." not in part["name"] and place.is_file():
            data = place.read_bytes()
            part["size"], part["xxh3_128"] = len(data), xxhash.xxh3_128_hexdigest(data)
    _write(path, output)
    finished = directory / "_finished_dump"
    if finished.exists():
        reported = json.loads(finished.read_bytes())
        reported["xxh3_128"], reported["id"] = xxhash.xxh3_128_hexdigest(path.read_bytes()), output["metadata"]["id"]
        _write(finished, reported)


def edit_metadata(dump: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Changes what `_dumpmetadata` says."""
    path = dump / "_dumpmetadata"
    output = json.loads(path.read_bytes())
    edit(output)
    _write(path, output)
    reseal(dump)


def edit_lines(directory: Path, part: str, edit: Callable[[Any], Any], marker: str = "_dumpmetadata") -> None:
    """Changes every line of a part."""
    path = directory / part
    with gzip.open(path) as file:
        lines = [json.dumps(edit(json.loads(line))).encode() for line in file]
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
    reseal(directory, marker)


def edit_entries(
    directory: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], part: str = FILES, marker: str = "_dumpmetadata"
) -> None:
    """Changes every file entry of a part."""
    path = directory / part
    table = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist([edit(row) for row in table.to_pylist()], schema=table.schema), path)
    reseal(directory, marker)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")
