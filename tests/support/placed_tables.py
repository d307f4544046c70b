"""Tables and partitions at places of a test's choice, and what the directories of both sides hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from command_line import Answer, command
from lab import Lab
from plain_tables import KEYS, PlainDatabase, text_storage

from replicator.core.model import EXTERNAL, MANAGED, Partition, Table, partition_name
from replicator.metastore.thrift import ThriftMetastore

Files = Mapping[str, str]


def write(place: Path, files: Files) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)


def table(
    db: PlainDatabase,
    name: str,
    place: Path,
    files: Files | None = None,
    *,
    external: bool = True,
    partitioned: bool = False,
    **parameters: str,
) -> None:
    """A table at a place of the test's choice."""
    made = Table(
        db=db.name,
        name=name,
        kind=EXTERNAL if external else MANAGED,
        storage=text_storage(place),
        partition_keys=KEYS if partitioned else (),
        parameters={**({"EXTERNAL": "TRUE"} if external else {}), **parameters},
    )
    db.metastore.create_table(made)
    write(place, files or {})


def partition(db: PlainDatabase, name: str, value: str, place: Path, files: Files | None = None) -> None:
    write(place, files or {})
    db.metastore.add_partitions(db.name, name, [Partition(values=(value,), storage=text_storage(place))])


def toggle(db: PlainDatabase, name: str, *, external: bool) -> None:
    """ALTER TABLE ... SET TBLPROPERTIES ('EXTERNAL' = ...)."""
    there = db.metastore.table(db.name, name)
    parameters = {key: value for key, value in there.parameters.items() if key != "EXTERNAL"}
    parameters |= {"EXTERNAL": "TRUE"} if external else {}
    kind = EXTERNAL if external else MANAGED
    db.metastore.alter_table(db.name, name, msgspec.structs.replace(there, kind=kind, parameters=parameters))


def path_of(location: str | None) -> Path:
    return Path("/" + str(location).removeprefix("file:").lstrip("/"))


def held(metastore: ThriftMetastore, db: str) -> dict[str, Any]:
    """Every table and partition by its name, with what lies in its directory: path -> digest. Asks the metastore and
    walks directories, and knows nothing of places."""
    found: dict[str, Any] = {}
    for name in metastore.table_names(db):
        there = metastore.table(db, name)
        if not there.partition_keys:
            found[name] = (there.kind, walked(path_of(there.location)))
            continue
        found[name] = there.kind
        for page in metastore.partitions(db, name, metastore.partition_names(db, name)):
            for each in page:
                key = f"{name}/{partition_name(there.partition_keys, each.values)}"
                found[key] = walked(path_of(each.location))
    return found


def walked(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(place).parts)
    }


def bootstrap(fixture: Lab, *options: str) -> None:
    for answer in (fixture.dump(), fixture.load(None, *options)):
        assert answer.code == 0, answer
    assert held(fixture.target.metastore, fixture.name) == held(fixture.source.metastore, fixture.name)


def catch_up(fixture: Lab, *options: str) -> Answer:
    """The next range; both sides hold the same afterwards, however it is compared."""
    dumped = fixture.dump(since=fixture.last)
    assert dumped.code == 0, dumped
    loaded = fixture.load(None, *options)
    assert loaded.code == 0, loaded
    assert held(fixture.target.metastore, fixture.name) == held(fixture.source.metastore, fixture.name)
    again = fixture.load(None, *options)
    assert (again.code, again.output["status"]) == (0, "already loaded")
    same = command("verify", "--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name)
    assert same.code == 0, same
    return loaded
