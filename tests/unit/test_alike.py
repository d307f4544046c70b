"""A proof by the texts of partitions agrees with making the replica and comparing that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from replicator.compare.differences import Alike, alike_partitions
from replicator.core.model import Column, Partition, Serde, Skew, Storage, Table

ALIKE = Alike("file:/source/db/t", "file:/target/db/t")
SERDE = Serde(name="s", library="lib", parameters={"field.delim": ","})
STORAGE = Storage(columns=(Column("a", "int"),), location="file:/source/db/t/p=1", serde=SERDE)
SOURCE = Partition(values=("1",), create_time=5, storage=STORAGE, parameters={"numRows": "1"})


def _moved(partition: Partition, location: str) -> Partition:
    assert partition.storage
    return msgspec.structs.replace(
        partition, storage=msgspec.structs.replace(partition.storage, location=location), create_time=9
    )


TARGET = _moved(SOURCE, "file:/target/db/t/p=1")


def test_a_partition_as_a_load_makes_it_is_alike() -> None:
    assert ALIKE.proves(SOURCE, TARGET)
    marked = {**SOURCE.parameters, "replicator.position": "7", "DO_NOT_UPDATE_STATS": "true"}
    assert ALIKE.proves(SOURCE, msgspec.structs.replace(TARGET, parameters=marked, last_access_time=3))


def _another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, ("another", 1))
        case dict():
            return {**value, "another": "value"}
        case Serde():
            return msgspec.structs.replace(value, library="another")
        case _:
            return Skew(columns=("a",))


@pytest.mark.parametrize("attribute", Storage.__struct_fields__)
def test_any_other_storage_is_not(attribute: str) -> None:
    storage = TARGET.storage
    assert storage
    other = msgspec.structs.replace(storage, **{attribute: _another(getattr(storage, attribute))})
    assert not ALIKE.proves(SOURCE, msgspec.structs.replace(TARGET, storage=other))


@pytest.mark.parametrize("attribute", ["values", "storage", "parameters"])
def test_any_other_partition_is_not(attribute: str) -> None:
    compared = {*Partition.__struct_fields__} - {"create_time", "last_access_time", "extra"}
    assert compared == {"values", "storage", "parameters"}
    changed = None if attribute == "storage" else _another(getattr(TARGET, attribute))
    assert not ALIKE.proves(SOURCE, msgspec.structs.replace(TARGET, **{attribute: changed}))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("file:/source/db/t/p=1", "file:/target/db/t/p=2"),
        ("file:/source/db/other", "file:/target/db/other"),
        ("file:/source/db/t/../u", "file:/target/db/t/../u"),
        ("file:/source/db/t/.published/1.t/p=1", "file:/target/db/t/.published/1.t/p=1"),
        ("file:/source/db/t2/p=1", "file:/target/db/t2/p=1"),
    ],
)
def test_other_places_are_not_told(here: str, there: str) -> None:
    assert not ALIKE.proves(_moved(SOURCE, here), _moved(SOURCE, there))


@pytest.mark.parametrize("home", ["parameters", "storage", "serde"])
def test_what_may_name_a_place_is_not_told(home: str) -> None:
    """A load rewrites it, also if it is the same text on both sides."""
    values = {"avro.schema.url": "file:/source/db/t/schema"}
    sides = []
    for partition in (SOURCE, TARGET):
        storage = partition.storage
        assert storage
        if home == "serde":
            storage = msgspec.structs.replace(storage, serde=msgspec.structs.replace(SERDE, parameters=values))
        elif home == "storage":
            storage = msgspec.structs.replace(storage, parameters=values)
        partition = msgspec.structs.replace(partition, storage=storage)
        sides.append(msgspec.structs.replace(partition, parameters=values) if home == "parameters" else partition)
    assert not ALIKE.proves(sides[0], sides[1])


def test_published_tables_and_tables_without_a_place_are_not_told() -> None:
    table, place = Table(db="db", name="t", storage=STORAGE), "file:/source/db/t/p=1"
    assert alike_partitions(table, table) == Alike(place, place)
    for another in (None, "file:/target/.published/1/db.t", "file:/target/db/t/"):
        other = msgspec.structs.replace(table, storage=msgspec.structs.replace(STORAGE, location=another))
        assert alike_partitions(table, other) is None and alike_partitions(other, table) is None
