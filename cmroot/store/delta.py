"""The log of a Delta table: the names in it and their order, and the files that its last version names. Reads JSON and
Parquet; accesses no store.

The log defines the table: a version names its data files, and a reader uses the highest version that the log contains
without a gap. So a log is listed before its data files, and published after them, in the order of its versions. The
protocol (github.com/delta-io/delta, PROTOCOL.md): the newest complete checkpoint with its sidecars, then the commits
after it. Paths are URL-encoded and relative to the table, or absolute if they are outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import FormatError

LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"

_BELOW = re.compile(rf"(?:^|/){LOG}/([^/]+(?:/[^/]+)*)$")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|(\d{10})\.(\d{10})\.parquet|[0-9a-f-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_OF_VERSION = re.compile(r"(\d{20})\.")

BESIDE, COMMIT, LAST = 0, 1, 2  # ranks, in the order of their publication


def in_log(path: str) -> str | None:
    """Returns the part of a path below the log's directory; None if the path is not in a log."""
    found = _BELOW.search(path)
    return found[1] if found else None


def rank(path: str) -> tuple[int, int] | None:
    """Returns the order in which a file of a log is published, among those of its table: checkpoints and their parts,
    then commits by version, then the name of the last checkpoint. None for data, which is published before them all."""
    name = in_log(path)
    if name is None:
        return None
    if commit := _COMMIT.fullmatch(name):
        return COMMIT, int(commit[1])
    return (LAST, 0) if name == LAST_CHECKPOINT else (BESIDE, 0)


def commit_version(path: str) -> int | None:
    """Returns the version of a path of a commit; None for other paths."""
    found = rank(path)
    return found[1] if found and found[0] == COMMIT else None


def checkpoint_version(name: str) -> int | None:
    """Returns the version whose checkpoint, or part of one, has this name in the log; None for other names."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Returns the complete checkpoints among the names in a log, by version; any one of several of the same version."""
    single: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found and found[3]:
            parts.setdefault((int(found[1]), int(found[3])), {})[int(found[2])] = name
        elif found:
            single[int(found[1])] = [name]
    whole = {version: list(some.values()) for (version, count), some in parts.items() if len(some) == count}
    return whole | single


def last_version(names: Iterable[str]) -> int | None:
    """Returns the newest version that these names of a log contain without a gap, after the newest checkpoint; None
    when they contain no version."""
    names = list(names)
    commits = {int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))}
    begun = checkpoints(names)
    if not begun and not commits:
        return None
    version = max(begun) if begun else min(commits)
    while version + 1 in commits:
        version += 1
    return version


def beyond(names: Iterable[str]) -> set[str]:
    """Returns names that a reader cannot use yet, of a log that was listed while it was written: those of versions
    after the last one without a gap; with them the name of the last checkpoint, which may be a later one."""
    names = list(names)
    last = last_version(names)
    if last is None:
        return set()
    found = set()
    for name in names:
        of_version = _COMPACTED.fullmatch(name) or _OF_VERSION.match(name)
        if of_version and int(of_version[1]) > last:
            found.add(name)
    return found | ({LAST_CHECKPOINT} & set(names) if found else set())


# ---- contents --------------------------------------------------------------------------------------------------------


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
