"""Avro schemas and values by chance, and SequenceFiles as no writer here makes them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def random_type(random: random.Random, depth: int, named: dict[str, Any]) -> Any:
    """An Avro schema. named: records around it and before it, which it may refer to; it adds its own."""
    match random.randrange(7 if depth else 3):
        case 0 | 1:
            return random.choice(["int", "long", "string", "bytes", "boolean", "float", "double", "null"])
        case 2:
            return ["null", *([random.choice(sorted(named))] if named else []), "long", {"type": "string"}]
        case 3:
            return {"type": "array", "items": random_type(random, depth - 1, named)}
        case 4:
            return {"type": "map", "values": random_type(random, depth - 1, named)}
    record = {"type": "record", "name": f"R{len(named)}", "fields": []}
    named[record["name"]] = record
    record["fields"] = [
        {"name": f"f{at}", "type": random_type(random, depth - 1, named)} for at in range(random.randrange(5))
    ]
    return record if random.random() < 0.5 else ["double", record, {"type": "array", "items": "boolean"}]


def random_value(random: random.Random, type_: Any, named: dict[str, Any], depth: int = 6) -> Any:
    """Of a schema. depth: behind which nothing that may end goes on."""
    match type_:
        case "int" | "long":
            return random.choice([0, -1, 63, 64, -65, 8191, 8192, 2**31 - 1, -(2**31)])
        case "string" | {"type": "string"}:
            return "ü" * random.choice([0, 1, 31, 32, 63, 64, 9000])
        case "bytes":
            return random.randbytes(random.randrange(200))
        case "boolean":
            return random.random() < 0.5
        case "float" | "double":
            return float(random.randrange(1000))
        case "null":
            return None
        case list():
            return random_value(random, random.choice(type_) if depth > 0 else type_[0], named, depth - 1)
        case {"items": inner}:
            many = random.randrange(4) if depth > 0 else 0
            return [random_value(random, inner, named, depth - 1) for _ in range(many)]
        case {"values": inner}:
            many = random.randrange(4) if depth > 0 else 0
            return {"k" * at: random_value(random, inner, named, depth - 1) for at in range(many)}
        case {"fields": fields}:
            return {each["name"]: random_value(random, each["type"], named, depth - 1) for each in fields}
    return random_value(random, named[type_], named, depth)


@dataclass(frozen=True)
class SequenceFile:
    """pack: of a codec that is called by its class; in_blocks: (records of a block), none: one record after the other;
    values: `Text` or `BytesWritable`."""

    version: int = 6
    values: str = "Text"
    codec: str = ""
    pack: Callable[[bytes], bytes] = bytes
    in_blocks: int = 0
    sync: bytes = b"a sync marker is"

    @property
    def header(self) -> bytes:
        names = [f"org.apache.hadoop.io.{name}".encode() for name in ("LongWritable", self.values)]
        notes = b"\0\0\0\1\4note\4text" if self.version > 5 else b""
        flags = bytes((bool(self.codec), bool(self.in_blocks)))
        codec = self.text(self.codec.encode()) if self.codec else b""
        output = b"".join(map(self.text, names)) + flags + codec + notes
        return b"SEQ" + bytes((self.version,)) + output + self.sync

    def written(self, rows: Sequence[bytes]) -> bytes:
        """A sync marker before each third record."""
        pairs = [(at.to_bytes(8, "big"), self.value(row)) for at, row in enumerate(rows)]
        if not self.in_blocks:
            return self.header + b"".join(self.record(at, *pair) for at, pair in enumerate(pairs))
        size = self.in_blocks
        return self.header + b"".join(self.block(pairs[at : at + size]) for at in range(0, len(pairs), size))

    def record(self, at: int, key: bytes, value: bytes) -> bytes:
        marker = b"\xff\xff\xff\xff" + self.sync if at % 3 == 2 else b""
        value = self.pack(value)
        return marker + (len(key) + len(value)).to_bytes(4, "big") + len(key).to_bytes(4, "big") + key + value

    def block(self, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        keys, values = zip(*pairs, strict=True)
        buffers = (map(self.length, keys), keys, map(self.length, values), values)
        packed = [self.pack(b"".join(each)) for each in buffers]
        output = b"".join(vint(len(each)) + each for each in packed)
        return b"\xff\xff\xff\xff" + self.sync + vint(len(pairs)) + output

    def value(self, row: bytes) -> bytes:
        return self.text(row) if self.values == "Text" else len(row).to_bytes(4, "big") + row

    @staticmethod
    def text(data: bytes) -> bytes:
        return vint(len(data)) + data

    @staticmethod
    def length(data: bytes) -> bytes:
        return vint(len(data))


def vint(value: int) -> bytes:
    """As Hadoop's WritableUtils."""
    if value < 128:
        return bytes((value,))
    size = (value.bit_length() + 7) // 8
    return struct.pack("b", -112 - size) + value.to_bytes(size, "big")
