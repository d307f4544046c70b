"""Contents of a Delta table's log: the files that its last version names. Reads JSON and Parquet; accesses no store.

Follows the protocol (github.com/delta-io/delta, PROTOCOL.md): the newest complete checkpoint with its sidecars, then
the commits after it. Paths are URL-encoded and relative to the table, or absolute if they are outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.delta import checkpoints, commit_version, in_log, last_version
from replicator.errors import FormatError

Action = dict[str, Any]
Open = Callable[[str], BinaryIO]  # a file of the log, by its name in it

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_ACTIONS = ("add", "remove", "sidecar")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: number for number, letter in enumerate(_ALPHABET)}


def names_outside(path: str, file: BinaryIO) -> bool:
    """Returns True if a file of a log names files by absolute paths. `path`: path of the log file, which determines its
    kind; False for a kind that names no files."""
    name = in_log(path) or ""
    if name.endswith(".crc") or not name.endswith((".json", ".parquet")):
        return False
    return any(_is_outside(action) for action in _actions(name, file))


def named_files(names: Iterable[str], open_file: Open) -> set[str]:
    """Returns every file that the last version of a log names, including deletion vectors: relative to the table, or
    absolute if the log names it so. `names`: all names in the log. Raises FormatError for a log that cannot be read."""
    names = list(names)
    last = last_version(names)
    if last is None:
        raise FormatError("the Delta log has no version", hint="check whether the table was ever committed")
    begun = checkpoints(names)
    begin = max((version for version in begun if version <= last), default=None)
    live: dict[tuple[str, str], Action] = {}
    for name in sorted(begun[begin]) if begin is not None else ():
        for action in _read(name, open_file):
            if sidecar := action.get("sidecar"):
                for below in _read(_in_sidecars(sidecar["path"]), open_file):
                    _apply(below, live)
            _apply(action, live)
    after = {version: name for name in names if (version := commit_version(f"_delta_log/{name}")) is not None}
    for version in sorted(after):
        if (begin is None or version > begin) and version <= last:
            for action in _read(after[version], open_file):
                _apply(action, live)
    return {path for add in live.values() for path in _paths(add)}


def is_whole(path: str) -> bool:
    """Returns True if a path in a log is not relative."""
    return path.startswith("/") or bool(_SCHEME.match(path))


def _in_sidecars(path: str) -> str:
    return path if is_whole(path) or "/" in path else f"_sidecars/{path}"


def _read(name: str, open_file: Open) -> Iterator[Action]:
    try:
        with open_file(name) as file:
            yield from _actions(name, file)
    except (msgspec.DecodeError, pa.ArrowException, KeyError, TypeError) as error:
        raise FormatError(
            f"{name} of a Delta log cannot be read: {error}", hint="compare it with the source's"
        ) from error


def _actions(name: str, file: BinaryIO) -> Iterator[Action]:
    """Yields the adds, removes and sidecars in a file of a log."""
    if name.endswith(".json"):
        for line in file:
            if line.strip():
                yield msgspec.json.decode(line)
        return
    parquet = pq.ParquetFile(file)
    columns = [
        column
        for name in _ACTIONS
        if name in parquet.schema_arrow.names
        for column in (f"{name}.path", f"{name}.deletionVector")
    ]
    for batch in parquet.iter_batches(columns=columns):
        for row in batch.to_pylist():
            yield {key: value for key, value in row.items() if value and value.get("path")}


def _apply(action: Action, live: dict[tuple[str, str], Action]) -> None:
    for kind in ("add", "remove"):
        if about := action.get(kind):
            vector = about.get("deletionVector") or {}
            key = about["path"], f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"
            if kind == "add":
                live[key] = about
            else:
                live.pop(key, None)


def _paths(add: Action) -> Iterator[str]:
    yield unquote(add["path"])
    vector = add.get("deletionVector") or {}
    if vector.get("storageType") == "u":
        yield _vector_path(vector["pathOrInlineDv"])
    elif vector.get("storageType") == "p":
        yield unquote(vector["pathOrInlineDv"])


def _vector_path(text: str) -> str:
    """Decodes `<random prefix><20 letters of Z85>`: a UUID, which names the file that contains the vector."""
    prefix, encoded = text[:-20], text[-20:]
    words = (encoded[start : start + 5] for start in range(0, 20, 5))
    number = 0
    for word in words:
        value = 0
        for letter in word:
            value = value * 85 + _DIGITS[letter]
        number = number << 32 | value
    digits = f"{number:032x}"
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{prefix}/deletion_vector_{uuid}.bin" if prefix else f"deletion_vector_{uuid}.bin"


def _is_outside(action: Action) -> bool:
    add = action.get("add")
    return add is not None and any(is_whole(path) or path.startswith("../") for path in _paths(add))
