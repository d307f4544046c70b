"""The interface of Hive's metastores: read from the classes in their jars, recorded in a file, decided by a page.

`python tests/support/interface.py` writes the record, tests/conformance/interface.toml: every call, and the fields of
every struct that reaches a metastore in an argument of a call that stores something. docs/interface.md decides about
each; its tables are read here.
"""

from __future__ import annotations

import os
import re
import struct
import textwrap
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from replicator.metastore.embedded import distributions
from replicator.metastore.java import find_java

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "conformance" / "interface.toml"
PAGE = ROOT / "docs" / "interface.md"
HIVES = tuple(distributions.VERSIONS)
_API = "org/apache/hadoop/hive/metastore/api/"
_SERVICE = f"{_API}ThriftHiveMetastore$Iface.class"
READS = "get* list_* show_* check_* find_* fetch_* validate_* is* partition_name_* translate_* heartbeat* set_ugi"
REMOVES = "drop_* remove_* delete_* revoke_* abort_* unlock cancel_* clear_* flush* truncate_*"
"""Calls that store nothing."""

Types = dict[str, tuple[str, ...]]  # of each field: the structs in its type
Names = dict[str, tuple[str, ...]]  # of each name: the versions of Hive that have it


@dataclass(frozen=True)
class Interface:
    """Of one version: the structs in the arguments of each call, and the fields of each struct."""

    calls: Types
    structs: Mapping[str, Types]

    def stored(self) -> dict[str, Types]:
        """The structs that reach a metastore in an argument of a call that stores something."""
        found: dict[str, Types] = {}
        waiting = [name for call, names in self.calls.items() if not is_aside(call) for name in names]
        while waiting:
            name = waiting.pop()
            if name not in found and name in self.structs:
                found[name] = self.structs[name]
                waiting += [each for names in found[name].values() for each in names]
        return found


def is_aside(call: str) -> bool:
    """A call that stores nothing."""
    return any(fnmatchcase(call, pattern) for pattern in f"{READS} {REMOVES}".split())


# ---- jars -----------------------------------------------------------------------------------------------------------


def jar_of(hive: str) -> Path:
    """The jar with the interface of this version, fetched once."""
    if hive == distributions.PYSPARK:
        return next(distributions.pyspark_jars().glob("hive-metastore-*.jar"))
    version = distributions.hive(hive)
    java = find_java(os.environ, version.java)
    return next(distributions.distribution(version, java, os.environ).glob("hive-exec-*.jar"))


def read_jar(jar: Path) -> Interface:
    with zipfile.ZipFile(jar) as archive:
        names = set(archive.namelist())
        _, methods = _members(archive.read(_SERVICE))
        calls = {name: _structs(signature.partition(")")[0]) for _, name, signature in methods}
        structs = {}
        for name in sorted(names):
            if name.startswith(_API) and f"{name.removesuffix('.class')}$_Fields.class" in names:
                structs[name.removeprefix(_API).removesuffix(".class")] = _fields(archive.read(name))
    return Interface(calls, structs)


_STATIC = 0x0008
_OF_THRIFT = ("__isset", "optionals")  # begins of fields that generated classes add


def _fields(data: bytes) -> Types:
    """The fields of a struct; those of a union are only in its methods."""
    fields, methods = _members(data)
    found = {
        name: _structs(signature)
        for flags, name, signature in fields
        if not flags & _STATIC and not name.startswith(_OF_THRIFT)
    }
    if found:
        return found
    types = {name: signature for _, name, signature in methods}
    each = [name.removeprefix("isSet") for name in types if re.match("isSet.", name)]
    return {f"{name[0].lower()}{name[1:]}": _structs(types[f"get{name}"]) for name in each}


def _structs(signature: str) -> tuple[str, ...]:
    return tuple(re.findall(rf"L{_API}(\w+);", signature))


Member = tuple[int, str, str]  # access flags, name, signature with generic types
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}


def _members(data: bytes) -> tuple[list[Member], list[Member]]:
    """Fields and methods of a class file, as the Java Virtual Machine Specification describes it in chapter 4."""
    pool: dict[int, str] = {}
    count, at, number = int.from_bytes(data[8:10]), 10, 1
    while number < count:
        tag, at = data[at], at + 1
        size = 2 + int.from_bytes(data[at : at + 2]) if tag == 1 else _SIZES[tag]
        if tag == 1:
            pool[number] = data[at + 2 : at + size].decode(errors="replace")
        at, number = at + size, number + (2 if tag in (5, 6) else 1)
    at += 6  # access flags, this class, its super class
    at += 2 + 2 * int.from_bytes(data[at : at + 2])  # interfaces
    read = partial(_read_members, data, pool)
    fields, at = read(at)
    methods, _ = read(at)
    return fields, methods


def _read_members(data: bytes, pool: Mapping[int, str], at: int) -> tuple[list[Member], int]:
    found: list[Member] = []
    count, at = int.from_bytes(data[at : at + 2]), at + 2
    for _ in range(count):
        flags, name, signature, attributes = struct.unpack_from(">HHHH", data, at)
        at += 8
        for _ in range(attributes):
            kind, size = struct.unpack_from(">HI", data, at)
            if pool[kind] == "Signature":
                (signature,) = struct.unpack_from(">H", data, at + 6)
            at += 6 + size
        found.append((flags, pool[name], pool[signature]))
    return found, at


# ---- record ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The calls of all versions, and the fields of each stored struct, each with the versions that have it."""

    calls: Names
    structs: Mapping[str, Names]

    @classmethod
    def of(cls, found: Mapping[str, Interface]) -> Record:
        stored = {hive: interface.stored() for hive, interface in found.items()}
        structs = sorted({name for each in stored.values() for name in each})
        fields = {name: _versions({hive: each.get(name, ()) for hive, each in stored.items()}) for name in structs}
        return cls(_versions({hive: interface.calls for hive, interface in found.items()}), fields)

    @classmethod
    def read(cls) -> Record:
        tables = tomllib.loads(RECORD.read_text())
        return cls(_names(tables.pop("calls")), {name: _names(table) for name, table in tables.items()})

    def of_version(self, hive: str) -> tuple[set[str], dict[str, set[str]]]:
        """Its calls, and the fields of its structs."""
        fields = {name: {each for each, hives in some.items() if hive in hives} for name, some in self.structs.items()}
        calls = {name for name, hives in self.calls.items() if hive in hives}
        return calls, {name: some for name, some in fields.items() if some}

    def write(self) -> None:
        lines = ["# The interface of Hive's metastores: python tests/support/interface.py writes this file."]
        for name, names in {"calls": self.calls, **self.structs}.items():
            lines += ["", f"[{name}]"]
            for hives in sorted(set(names.values()), key=lambda each: (HIVES.index(each[0]), -len(each))):
                some = " ".join(each for each in names if names[each] == hives)
                lines.append(f'"{" ".join(hives)}" = """\n{textwrap.fill(some, 118)}"""')
        RECORD.write_text("\n".join(lines) + "\n")


def _versions(found: Mapping[str, Iterable[str]]) -> Names:
    names = dict.fromkeys(name for some in found.values() for name in some)
    return {name: tuple(hive for hive, some in found.items() if name in some) for name in names}


def _names(table: Mapping[str, str]) -> Names:
    return {name: tuple(hives.split()) for hives, some in table.items() for name in some.split()}


def in_words(hives: tuple[str, ...]) -> str:
    """Versions as the page writes them."""
    if hives == HIVES:
        return "all"
    if hives == HIVES[HIVES.index(hives[0]) :]:
        return f"from {hives[0]}"
    return " to ".join(dict.fromkeys((hives[0], hives[-1])))


# ---- page -----------------------------------------------------------------------------------------------------------

REPLICATED, NAMED, NOT_OF_A_REPLICA, ARGUMENT = "replicated", "named", "not of a replica", "argument"
VERDICTS = (REPLICATED, NAMED, NOT_OF_A_REPLICA, ARGUMENT)


@dataclass(frozen=True)
class Row:
    """A row of the page. `struct`: empty for calls. `names`: of fields, or of calls."""

    struct: str
    names: tuple[str, ...]
    hives: str
    verdict: str
    reason: str


def rows() -> Iterator[Row]:
    """Rows of the page's tables of calls and of fields."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5:
            yield Row(cells[0].strip("`"), _quoted(cells[1]), *cells[2:])
        elif line.startswith("| `") and len(cells) == 3:
            yield Row("", _quoted(cells[0]), "", *cells[1:])


def _quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall("`([^`]+)`", cell))


if __name__ == "__main__":
    Record.of({hive: read_jar(jar_of(hive)) for hive in HIVES}).write()
