"""Hostile bytes: seeded changes of any file of a dump or a captured log. A sealed change has its checksums right again,
as somebody who wants something would make it. The same seed makes the same changes."""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Sequence
from pathlib import Path

from hostile import reseal

TOKENS: Sequence[bytes] = (
    b"../../victim",
    b"/../",
    b"..",
    b"\0",
    b"\\u0000",
    b"/",
    b"-1",
    b"99999999999999999999999",
    b"1e999",
    b"null",
    b"{}",
    b"[]",
    b'""',
    b"true",
    b"\xff\xfe",
    b"\\ud800",
    b"\x1b[2J",
    b"file:/",
    b"s3a://..",
    b"%2e%2e",
    b'"',
    b"}",
    b"[" * 3000,
)


def mutated(data: bytes, random: random.Random) -> bytes:
    """A few changes of some bytes; never the same bytes."""
    while True:
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            _mutate(changed, random)
        if bytes(changed) != data:
            return bytes(changed)


def _mutate(data: bytearray, random: random.Random) -> None:
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.choice((1, 1, 2, 8, 100)))
    match random.randrange(6):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1 if at < len(data):
            data[at] = random.randrange(256)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end]
        case 4:
            data[at:end] = random.choice(TOKENS)
        case _:
            data[at:at] = random.choice(TOKENS)


def mutated_text(data: bytes, random: random.Random) -> bytes:
    """JSON, or lines of it, that stays JSON: one value anywhere in it becomes something else."""
    lines = data.splitlines()
    index = random.randrange(len(lines)) if lines else 0
    try:
        value = json.loads(lines[index]) if len(lines) > 1 and lines[0] != b"{" else json.loads(data)
    except (ValueError, IndexError, RecursionError):
        return mutated(data, random)
    changed = json.dumps(_with_other(value, random)).encode()
    if len(lines) > 1 and lines[0] != b"{":
        lines[index] = changed
        return b"".join(line + b"\n" for line in lines)
    return changed + b"\n"


VALUES: Sequence[object] = (
    "../../victim",
    "..",
    ".",
    "",
    "/",
    "/etc/hostname",
    "a/../b",
    "x" * 5000,
    "\0",
    "\x1b]0;title\x07",
    "\ud800",
    "\u202e",
    "file:/w/../../victim",
    "file:../x",
    "s3a://../../x",
    "://",
    "hdfs://host:port/x",
    -1,
    0,
    1 << 31,
    1 << 63,
    1 << 200,
    0.5,
    None,
    True,
    [],
    {},
    [[]],
    {"": ""},
    ["../../victim"],
    "99999999999999999999",
)


def _with_other(value: object, random: random.Random) -> object:
    """The value with one of its leaves, or itself, replaced."""
    if isinstance(value, dict) and value and random.random() < 0.95:
        key = random.choice(list(value))
        if random.random() < 0.05:
            return {each: of for each, of in value.items() if each != key}
        return {**value, key: _with_other(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        index = random.randrange(len(value))
        return [*value[:index], _with_other(value[index], random), *value[index + 1 :]]
    if isinstance(value, str) and value and random.random() < 0.5:
        at = random.randrange(len(value) + 1)
        return value[:at] + random.choice(("/../", "..", "\0", "/", "\x1b[2J", "'", "%")) + value[at:]
    return random.choice(VALUES)


def damage(directory: Path, random: random.Random) -> str:
    """Changes bytes of one file of a dump or a segment, and no checksum. The file's name."""
    path = _any_file(directory, random)
    path.write_bytes(mutated(path.read_bytes(), random))
    return str(path.relative_to(directory))


def forge(directory: Path, random: random.Random, marker: str = "_dumpmetadata") -> str:
    """Changes what one file of a dump or a segment says, and makes every checksum right again. The file's name."""
    path = _any_file(directory, random)
    data, of_text = path.read_bytes(), random.random() < 0.7
    if path.name.endswith(".gz"):
        text = zlib.decompress(data, 47)
        changed = mutated_text(text, random) if of_text else mutated(text, random)
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        data = packer.compress(changed) + packer.flush()
    elif path.suffix == ".parquet":
        data = mutated(data, random)
    else:
        data = mutated_text(data, random) if of_text else mutated(data, random)
    path.write_bytes(data)
    unreadable = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
    with contextlib.suppress(*unreadable):  # what is said of the parts
        reseal(directory, marker)
    return str(path.relative_to(directory))


def _any_file(directory: Path, random: random.Random) -> Path:
    return random.choice(
        sorted(path for path in directory.rglob("*") if path.is_file() and "_finished_load" not in path.parts)
    )
