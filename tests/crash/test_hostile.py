"""Dumps, logs and notes are files that others may have written: what they name is looked at before anything is opened,
written or removed. Each test is one hostile file, met by a command; the world outside stays as it was."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Answer, command
from hostile import FILES, RECORDS, TABLES, edit_entries, edit_lines, edit_metadata, world
from lab import Lab

from replicator.captures.dumps.layout import DumpReader, check_parts, read_keys, signed
from replicator.core.model import Database
from replicator.errors import ConfigError, FormatError, Refused
from replicator.metastore.embedded.running import Running
from replicator.replay.retired import Retired, close_retired, note_retired, sweep_retired

TEXT = "1\x01one\n2\x01two\n"
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def fixture(fixture: Lab, tmp_path: Path) -> Lab:
    """A source, a first dump that is loaded, and a second that adds files, partitions and a table. Beside the target's
    database lie another one, and a directory of somebody else."""
    fixture.source.table("t", {"first": TEXT, "second": "3\x01three\n"})
    fixture.source.partitioned("parts", {"a": {"file": "1\x01a\n"}, "b": {"file": "1\x01b\n"}})
    fixture.bootstrap()
    fixture.source.write("t", {"third": "4\x01four\n"})
    fixture.source.add("parts", {"c": {"file": "1\x01c\n"}})
    fixture.source.drop_partitions("parts", ["b"])
    fixture.source.alter_partition("parts", "a", note="altered")
    fixture.source.table("new", {"file": TEXT})
    assert fixture.dump(since=fixture.last).code == 0
    for place in (fixture.warehouse / "victim.db", tmp_path / "outside"):
        place.mkdir(parents=True)
        (place / "theirs").write_text("not ours")
    return fixture


@contextlib.contextmanager
def nothing_outside(fixture: Lab, replica: str = "") -> Iterator[None]:
    """What lies outside of the replica's directories, and of the target's `$cmroot`, is no load's to change."""
    hostile = fixture.here / "hostile"
    own = [
        fixture.target.home,
        fixture.warehouse / "external",
        fixture.target_cmroot,
        hostile,
        fixture.last / "_finished_load",
    ]
    own.append(fixture.warehouse / f"{replica or fixture.name}.db")
    tops = [fixture.warehouse, fixture.here, fixture.source.home]
    before = world(*tops, but=own)
    kept = world(
        fixture.target_cmroot, but=[fixture.target_cmroot / name for name in ("files", "incoming", "lease", "loads")]
    )
    yield
    assert world(*tops, but=own) == before
    after = world(
        fixture.target_cmroot, but=[fixture.target_cmroot / name for name in ("files", "incoming", "lease", "loads")]
    )
    assert {path: value for path, value in after.items() if path in kept} == kept


@contextlib.contextmanager
def hostile(fixture: Lab) -> Iterator[Path]:
    """A copy of the last dump, to be changed; the load of it changes nothing, inside or outside."""
    dump = fixture.here / "hostile"
    shutil.copytree(fixture.last, dump)
    tops = [fixture.warehouse, fixture.here, fixture.source.home]
    with nothing_outside(fixture):
        before, objects = world(*tops, but=[dump, fixture.target_cmroot]), fixture.target.everything()
        yield dump
        assert world(*tops, but=[dump, fixture.target_cmroot]) == before and fixture.target.everything() == objects
    shutil.rmtree(dump)


def refused(answer: Answer, *named: str) -> None:
    assert (answer.code, answer.error) == (1, "FormatError"), answer.output
    for name in named:
        assert name in answer.message, answer.message
    assert answer.output["hint"]


def of_metadata(**changes: Any) -> Edit:
    return lambda output: output["metadata"].update(changes)


ABOVE = "../../victim.db"


OF_ITSELF: list[tuple[Edit, str]] = [
    (of_metadata(id=ABOVE), ABOVE),
    (of_metadata(id=".."), ".."),
    (of_metadata(id="/victim.db"), "/victim.db"),
    (of_metadata(slot="../../x"), "../../x"),
    (of_metadata(root_id="../x"), "../x"),
    (of_metadata(kind="other"), "other"),
    (lambda output: output["metadata"]["scope"].update(databases=["../victim"]), "../victim"),
    (lambda output: output["metadata"]["end"].update(position=1 << 70), "position"),
    (lambda output: output["metadata"]["end"].update(position=-1), "position"),
    (lambda output: output["parts"][0].update(name="../../victim.db/theirs"), "../../victim.db/theirs"),
    (lambda output: output["parts"][0].update(name="/etc/hostname"), "/etc/hostname"),
    (lambda output: output["parts"][0].update(name=""), "part"),
    (lambda output: output["parts"].append(output["parts"][0]), "twice"),
    (lambda output: output["parts"][0].update(rows=-5), "rows"),
    (lambda output: output["parts"][0].update(kind="directory"), "kind"),
]


def test_what_a_dump_says_of_itself_is_not_believed(fixture: Lab) -> None:
    for edit, named in OF_ITSELF:
        with hostile(fixture) as dump:
            edit_metadata(dump, edit)
            refused(fixture.load(dump), named)


OF_FILES: list[dict[str, Any]] = [
    {"path": "../../../outside/authorized_keys"},
    {"path": "/etc/hostname"},
    {"path": "a//b"},
    {"path": "a/./b"},
    {"path": "/"},
    {"path": "."},
    {"path": "a/.."},
    {"path": "a\0b"},
    {"partition": "../../../outside"},
    {"partition": "/p=a"},
    {"checksum": "../../../outside/theirs"},
    {"checksum": "0" * 31},
    {"op": "link"},
    {"size": -1},
    {"db": "../victim"},
    {"table": "../t"},
    {"table": "a//b"},
    {"location": "file:/w\0"},
]


def test_a_file_entry_names_only_what_lies_below_its_object(fixture: Lab) -> None:
    for changes in OF_FILES:
        with hostile(fixture) as dump:
            edit_entries(dump, lambda row: row | changes if row["op"] == "add" else row)  # noqa: B023
            refused(fixture.load(dump, "--dry-run"), FILES)
            refused(fixture.load(dump), FILES)


OF_RECORDS: list[tuple[str, dict[str, Any]]] = [
    ("drop_partitions", {"names": [ABOVE]}),
    ("drop_partitions", {"db": "../victim"}),
    ("alter_partition", {"before": ABOVE}),
    ("alter_partition", {"name": "p=a/../../.."}),
    ("change_files", {"partition": ABOVE}),
    ("add_partitions", {"table": ABOVE}),
]


def test_a_record_names_no_place_above_its_table(fixture: Lab) -> None:
    for kind, changes in OF_RECORDS:
        met = []

        def edit(record: dict[str, Any]) -> dict[str, Any]:
            if record["change"]["kind"] == kind:  # noqa: B023
                met.append(record["change"])  # noqa: B023
                record["change"] |= changes  # noqa: B023
            return record

        with hostile(fixture) as dump:
            edit_lines(dump, RECORDS, edit)
            assert met, kind
            refused(fixture.load(dump), RECORDS)


def test_a_dump_speaks_only_of_its_databases(fixture: Lab) -> None:
    with hostile(fixture) as dump:
        edit_metadata(dump, lambda output: output["metadata"]["scope"].update(databases=["other"]))
        refused(
            fixture.load(dump, "--rename-db", f"other={fixture.name}"), fixture.name, "is not one that the dump covers"
        )


@pytest.mark.parametrize("directory", ["", "relative", "/w/../x", "{root}", "{root}/slots", "{above}"])
def test_a_note_of_superseded_directories_names_places_outside_of_the_root(fixture: Lab, directory: str) -> None:
    root = fixture.target_cmroot
    directory = directory.format(root=root, above=fixture.warehouse)
    note_retired(str(root), "load", [Retired(directory, fixture.name, "t")])
    close_retired(str(root), "load", now=0.0)
    with nothing_outside(fixture), pytest.raises(FormatError, match="superseded"):
        sweep_retired(str(root), fixture.target.metastore, timedelta(0), now=lambda: 1.0)


def test_a_table_names_no_place_above_its_database(fixture: Lab) -> None:
    edit_lines(fixture.last, TABLES, lambda table: table | {"name": f"../../{table['name']}"})
    with nothing_outside(fixture):
        refused(fixture.load(), TABLES)


def _relocate(value: Any, old: str, new: str) -> Any:
    """Every text of a record that begins with a location begins with another one."""
    if isinstance(value, dict):
        return {key: _relocate(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_relocate(each, old, new) for each in value]
    return new + value[len(old) :] if isinstance(value, str) and value.startswith(old) else value


@pytest.mark.parametrize(
    ("table", "above"), [("new", "/../../outside"), ("new", "/x/../../victim.db/y"), ("parts", "/../victim.db")]
)
def test_a_location_that_leaves_its_database_by_dots_lands_in_the_directory_of_external_tables(
    fixture: Lab, above: str, table: str
) -> None:
    """A metastore may hold such a location; its readers fold it, and so does the load: below its database it is not."""
    old = f"file:{fixture.source.home}/{table}"
    new = f"file:{fixture.source.home}{above}"
    edit_lines(fixture.last, RECORDS, lambda line: _relocate(line, old, new))
    edit_lines(fixture.last, TABLES, lambda line: _relocate(line, old, new))
    edit_entries(fixture.last, lambda row: _relocate(row, old, new))
    with nothing_outside(fixture):
        answer = fixture.load(None, "--overwrite")
    assert answer.code in (0, 1), answer.output  # the bytes may be nowhere, by those names
    assert "internal error" not in answer.message


def test_a_dump_puts_nothing_into_the_targets_root(fixture: Lab) -> None:
    """A database that lies at the warehouse's top has `.cmroot` below it."""
    top = f"{fixture.name}_top"
    fixture.target.metastore.create_database(Database(name=top, location=f"file:{fixture.warehouse}"))
    assert fixture.dump().code == 0
    old, new = f"file:{fixture.source.home}/new", f"file:{fixture.source.home}/x/../.cmroot/holds"
    edit_lines(fixture.last, RECORDS, lambda line: _relocate(line, old, new))
    edit_lines(fixture.last, TABLES, lambda line: _relocate(line, old, new))
    edit_entries(fixture.last, lambda row: _relocate(row, old, new))
    answer = fixture.load(None, "--rename-db", f"{fixture.name}={top}")
    assert answer.code == 6 and ".cmroot/holds" in answer.message, answer.output
    assert list((fixture.target_cmroot / "holds").iterdir()) == []


OF_TABLES: list[dict[str, Any]] = [
    {"create_time": 1 << 40},
    {"retention": -(1 << 31) - 1},
    {"extra": {"26": {"str": 5}}},
    {"extra": {"x": {"str": "a"}}},
    {"extra": {"26": "a"}},
    {"privileges": {"1": {"map": ["str", "lst", 1, {"u": ["rec", 1, {"1": {"str": 7}}]}]}}},
    {"privileges": {"1": {"map": []}}},
    {"storage": {"buckets": 1 << 31}},
    {"storage": {"extra": {"1": {"lst": "columns"}}}},
    {"storage": {"extra": {"2": {"str": "file:/another/place"}}}},
    {"storage": {"serde": {"extra": {"3": {"map": ["str", "str", 1, {"path": "/another/place"}]}}}}},
    {"extra": {"2": {"str": "default"}}},
    {"extra": {"1": {"str": "another"}}},
]


def test_values_that_no_metastore_has_are_refused(fixture: Lab) -> None:
    """What the dump says of an object must fit into the metastore's own types."""
    assert fixture.dump().code == 0
    for number, changes in enumerate(OF_TABLES):
        dump = fixture.here / f"values{number}"
        shutil.copytree(fixture.last, dump)

        def edit(table: dict[str, Any]) -> dict[str, Any]:
            storage = table.get("storage", {}) | changes.get("storage", {})  # noqa: B023
            return table | changes | {"storage": storage}  # noqa: B023

        def edit_record(record: dict[str, Any]) -> dict[str, Any]:
            if "table" in record["change"] and record["change"]["kind"] == "create_table":
                record["change"]["table"] = edit(record["change"]["table"])
            return record

        edit_lines(dump, RECORDS, edit_record)
        edit_lines(dump, TABLES, edit)
        name = f"{fixture.name}_v{number}"
        objects = fixture.target.everything()
        with nothing_outside(fixture, name):
            answer = fixture.load(dump, "--rename-db", f"{fixture.name}={name}")
            if answer.code == 0:  # a field that the target's thrift does not know is left out
                shutil.rmtree(dump / "_finished_load")
        if answer.code != 0:
            refused(answer)
        else:
            (table,) = fixture.target.metastore.tables(name, ["new"])
            assert table.location == f"file:{fixture.warehouse}/{name}.db/new", changes
        assert fixture.target.everything() == objects


def test_a_dump_moves_no_slot_of_another_root_or_beyond_its_log(fixture: Lab) -> None:
    """Behind a slot's position things expire."""
    assert fixture.dump("--slot", "consumer").code == 0
    slot = fixture.cmroot / "slots" / "consumer"
    before = slot.read_bytes()
    other = Lab.__new__(Lab)
    other.__dict__ |= {**fixture.__dict__, "cmroot": fixture.here / "another"}
    assert other.dump("--slot", "consumer", out=fixture.here / "other").code == 0
    forged = [of_metadata(root_id="another"), lambda output: output["metadata"]["end"].update(position=1 << 60)]
    for number, edit in enumerate(forged):
        dump = fixture.here / f"forged{number}"
        shutil.copytree(fixture.last, dump)
        edit_metadata(dump, edit)
        answer = fixture.load(dump, "--rename-db", f"{fixture.name}={fixture.name}_{number}")
        assert answer.code == 0 and "was not confirmed" in answer.output["warnings"][0], answer.output
        assert slot.read_bytes() == before
    name = f"{fixture.name}={fixture.name}_x"
    answer = fixture.load(fixture.here / "other", "--source-cmroot", str(fixture.cmroot), "--rename-db", name)
    assert "is not the root" in " ".join(answer.output["warnings"]), answer.output
    assert slot.read_bytes() == before
    assert fixture.load(None, "--rename-db", name + "y").output["warnings"] == []
    assert slot.read_bytes() != before


# ---- signatures ---------------------------------------------------------------------------------------------------


def key_file(path: Path, *keys: str) -> str:
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(0o600)
    return str(path)


OLD, NEW, OTHERS = "o" * 32, "n" * 32, "x" * 64


def test_with_a_key_only_what_was_signed_is_loaded(fixture: Lab, tmp_path: Path) -> None:
    ours, theirs = key_file(tmp_path / "ours", OLD), key_file(tmp_path / "theirs", OTHERS)
    unsigned = fixture.last

    def is_refused(dump: Path, key: str, *named: str) -> None:
        for answer in (
            fixture.load(dump, "--key-file", key),
            fixture.load(dump, "--key-file", key, "--dry-run"),
            command("show", str(dump), "--key-file", key),
        ):
            assert (answer.code, answer.error) == (6, "Refused"), answer.output
            for name in (str(dump), *named):
                assert name in answer.message, answer.output

    with hostile(fixture) as dump:
        is_refused(dump, ours, "not signed")
    other = fixture.here / "other"
    for out in (other, None):
        assert fixture.dump("--key-file", ours, out=out, since=fixture.here / "dump1").code == 0
    assert fixture.last != unsigned
    with hostile(fixture) as dump:
        is_refused(dump, theirs, "none of the keys")
        edit_entries(dump, lambda row: row | {"position": row["position"]})
        is_refused(dump, ours, "_dumpmetadata")  # which says the parts' checksums
    with hostile(fixture) as dump:
        (dump / "_signature").unlink()
        is_refused(dump, ours, "not signed")
    with hostile(fixture) as dump:  # another dump's signature
        shutil.copy(other / "_signature", dump / "_signature")
        is_refused(dump, ours, "belongs to dump")
    rotated = key_file(tmp_path / "rotated", NEW, OLD)
    assert command("show", str(fixture.last), "--key-file", rotated).code == 0
    assert fixture.load(None, "--key-file", rotated).code == 0
    fixture.is_same()
    assert fixture.load(unsigned).code == 0  # without a key none is asked for


def test_a_part_with_the_same_fast_checksum_is_not_the_one_that_was_signed(fixture: Lab, tmp_path: Path) -> None:
    """What the marker says of a part holds against damage; what is signed is its SHA-256."""
    ours = read_keys(key_file(tmp_path / "ours", OLD))
    assert fixture.dump("--key-file", ours.file, since=fixture.here / "dump1").code == 0
    found = signed(str(fixture.last), DumpReader(str(fixture.last)).metadata.id, "_dumpmetadata", ours)
    assert sorted(found.parts) == sorted([RECORDS, TABLES, FILES])
    (fixture.last / FILES).write_bytes(b"other bytes")
    with pytest.raises(Refused, match=FILES):
        check_parts(str(fixture.last), [RECORDS, TABLES, FILES], found)


def test_a_key_that_others_can_read_or_that_is_short_is_no_key(tmp_path: Path) -> None:
    short, open_to_all = key_file(tmp_path / "short", "secret"), Path(key_file(tmp_path / "open", OLD))
    open_to_all.chmod(0o640)
    for path in (short, str(open_to_all), key_file(tmp_path / "empty"), str(tmp_path / "none")):
        answer = command("show", str(tmp_path), "--key-file", path)
        with pytest.raises(ConfigError, match=path) as raised:
            read_keys(path)
        assert "secret" not in str(raised.value) and raised.value.hint and answer.code != 0
    assert OLD not in repr(read_keys(key_file(tmp_path / "good", OLD)))


def test_a_policy_signs_its_dumps_and_loads_only_those(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    replication.db().table("t", {"first": TEXT})
    keys = key_file(tmp_path / "keys", OLD)
    policy = "".join(f"{key} = {json.dumps(value)}\n" for key, value in replication.keys.items())
    config = tmp_path / "replicator.toml"
    config.write_text(f'[dumps]\nkey_file = "{keys}"\n[policies.{replication.name}]\n{policy}')

    def sync() -> Answer:
        return command("--config", str(config), "sync", replication.name)

    assert sync().code == 0
    replication.db().write("t", {"second": TEXT})
    assert sync().code == 0
    assert replication.replica().shown() == replication.db().shown()
    dumps = list((tmp_path / "dumps" / replication.name).iterdir())
    assert len(dumps) == 2
    for dump in dumps:
        DumpReader(str(dump), read_keys(keys)).verify()
    key_file(tmp_path / "keys", OTHERS)
    loading = {"replicator.loading": DumpReader(str(max(dumps))).metadata.id}
    db = replication.target.metastore.database(replication.replica().name)
    replication.target.metastore.alter_database(
        db.name, msgspec.structs.replace(db, parameters=db.parameters | loading)
    )
    for dump in dumps:  # a killed run's, which the next one would end with
        (dump / "_signature").unlink()
    again = sync()
    assert again.code in (0, 6), again.output
    if again.code == 0:
        assert any("not signed" in warning for warning in again.output["warnings"]), again.output
