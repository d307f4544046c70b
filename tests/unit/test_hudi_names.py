"""Names of a Hudi table: which are its files, which belong to a state, and the order in which they are published."""

from __future__ import annotations

import random

import pytest

from cmroot.store import hudi

V9 = [
    ".hoodie/hoodie.properties",
    ".hoodie/timeline/20260101000000001.deltacommit.requested",
    ".hoodie/timeline/20260101000000001.deltacommit.inflight",
    ".hoodie/timeline/20260101000000001_20260101000005000.deltacommit",
    ".hoodie/timeline/20260101000000002.compaction.requested",
    ".hoodie/timeline/20260101000000002.compaction.inflight",
    ".hoodie/timeline/20260101000000003.deltacommit.requested",
    ".hoodie/timeline/20260101000000003.deltacommit.inflight",
    ".hoodie/timeline/20260101000000004_20260101000004000.deltacommit",
    ".hoodie/timeline/20260101000000004.deltacommit.inflight",
    ".hoodie/metadata/.hoodie/hoodie.properties",
    ".hoodie/metadata/.hoodie/timeline/20260101000000001_20260101000004999.deltacommit",
    ".hoodie/metadata/.hoodie/timeline/20260101000000003.deltacommit.inflight",
]
V6 = [
    ".hoodie/20260101000000001.commit",
    ".hoodie/20260101000000001.commit.requested",
    ".hoodie/20260101000000001.inflight",
    ".hoodie/20260101000000002.commit.requested",
    ".hoodie/20260101000000002.inflight",
    ".hoodie/20260101000000003.replacecommit.requested",
]


@pytest.mark.parametrize(
    "path, own",
    [
        ("d=x/a_0-1-2_20260101000000001.parquet", True),
        ("d=x/.a-0_20260101000000001.log.1_0-1-2", True),
        (".a-0_20260101000000001.log.1_0-1-2.cdc", True),
        ("d=x/.hoodie_partition_metadata", True),
        ("d=x/.hoodie_partition_metadata.parquet", True),
        ("d=x/.a_0-1-2_20260101000000001.parquet.crc", False),
        ("d=x/.replicating-1-2", False),
        (".hive-staging_1/a.parquet", False),
        ("_temporary/0/a.parquet", False),
        (".hoodie/.temp/1/d=x/a.marker.CREATE", False),
        (".hoodie/.heartbeat/20260101000000001", False),
        (".hoodie/lock", False),
        (".hoodie/.hoodie.properties.crc", False),
        (".hoodie/.index_defs/index.json", True),
        (".hoodie/.schema/20260101000000001.schemacommit", True),
        (".hoodie/archived/.commits_.archive.1_1-0-1", True),
        (".hoodie/metadata/files/.files-0000-0_00000000000000010.log.1_0-0-0", True),
    ],
)
def test_hidden_names_are_a_tables_own_if_hudi_writes_them(path: str, own: bool) -> None:
    assert hudi.belongs(path) is own


@pytest.mark.parametrize("path", V9)
def test_files_of_instants_that_are_not_completed_are_no_part_of_a_state(path: str) -> None:
    wanted = "03." not in path and ".compaction.inflight" not in path
    assert hudi.State(V9).has(path) is wanted


@pytest.mark.parametrize(
    "path, valid",
    [
        ("a_0-1-2_20260101000000001.parquet", True),
        ("a_0-1-2_20260101000000002.parquet", False),  # of a compaction that runs
        ("a_0-1-2_20260101000000005.parquet", False),  # of an instant that began after the listing
        ("a_0-1-2_20251231000000000.parquet", True),  # of an instant that was archived
        (".a_20260101000000003.log.1_0-1-2", False),
        (".a_20260101000000004.log.1_0-1-2", True),
        (".hoodie/metadata/files/.files-0000-0_20260101000000003.log.1_0-1-2", False),
        (".hoodie/metadata/files/.files-0000-0_20260101000000001.log.1_0-1-2", True),
        ("_SUCCESS", True),
    ],
)
def test_data_files_belong_to_the_state_of_their_instant(path: str, valid: bool) -> None:
    assert hudi.State(V9).has(path) is valid


def test_version_6_names_logs_by_their_base_files_instant() -> None:
    state = hudi.State(V6)
    found = [path for path in V6 if state.has(path)]
    assert found == [*V6[:3], V6[5]]
    assert state.has(".a_20260101000000002.log.1_0-1-2")
    assert not state.has("a_0-1-2_20260101000000002.parquet")


def test_a_savepoint_does_not_make_later_archived_instants_invalid() -> None:
    paths = [
        ".hoodie/timeline/20260101000000001_20260101000000002.commit",
        ".hoodie/timeline/20260101000000001_20260101000000003.savepoint",
        ".hoodie/timeline/20260101000000001.savepoint.inflight",
        ".hoodie/timeline/20260301000000000_20260301000000001.commit",
    ]
    state = hudi.State(paths)
    assert all(map(state.has, paths))
    assert state.has("a_0-1-2_20260201000000000.parquet")
    assert not state.has("a_0-1-2_20260401000000000.parquet")


def test_a_clean_that_is_older_than_archived_commits_does_not_make_these_invalid() -> None:
    """Cleans and rollbacks are archived by a limit of their own (HoodieTimelineArchiver)."""
    paths = [".hoodie/20260101000000001.clean", ".hoodie/20260301000000000.commit"]
    assert hudi.State(paths).has("a_0-1-2_20260201000000000.parquet")


def test_instants_are_published_after_what_they_need() -> None:
    files = [*V9, ".hoodie/timeline/history/a_0.parquet", ".hoodie/timeline/history/manifest_2"]
    files += [".hoodie/timeline/history/_version_"]
    random.Random(1).shuffle(files)
    ranked = sorted(files, key=lambda path: hudi.rank(path) or ())
    at = {path: number for number, path in enumerate(ranked)}
    assert all(at[path] < at[V9[0]] for path in V9 if "/metadata/" in path)
    assert at[V9[0]] == min(number for path, number in at.items() if "/metadata/" not in path)
    assert at[V9[1]] < at[V9[3]] and at[V9[4]] < at[V9[8]]
    assert at[V9[8]] < at[V9[3]]  # by the time of completion, not of the request
    assert [path.rpartition("/")[2] for path in ranked[-3:]] == ["a_0.parquet", "manifest_2", "_version_"]


def test_a_new_clean_shows_that_files_may_be_missing() -> None:
    clean = ".hoodie/timeline/20260101000000009.clean.requested"
    assert not hudi.removals([*V9, clean]) <= hudi.removals(V9)
    assert hudi.removals([*V9, ".hoodie/timeline/20260101000000009.deltacommit.requested"]) <= hudi.removals(V9)


def test_the_database_of_the_properties_is_renamed_with_their_checksum() -> None:
    data = b"#x\nhoodie.table.name=cow\nhoodie.table.checksum=1\r\nhoodie.database.name=a\nb=a\n"
    moved = hudi.translated(
        "/t/.hoodie/hoodie.properties", data, str, lambda name: "h" if name == "a" else name, lambda _: None
    )
    # 1226372370 is what Hudi 1.2.0 has written for a table `cow` of a database `h`.
    assert moved == data.replace(b"name=a", b"name=h").replace(b"checksum=1", b"checksum=1226372370")
