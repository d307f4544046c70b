"""Retention on an object store: a real S3 endpoint, with the guide's configuration unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import gobblin_examples as examples
import pytest
from stores import s3_server

from cmroot.errors import UnknownPlace
from cmroot.root import create_or_open
from replicator.cli.main import run as command
from replicator.lifecycle.retention.dataset_versions import Found, files_below, glob


@pytest.fixture(scope="module")
def lake() -> Iterator[Any]:
    """A filesystem with the bucket `lake`."""
    with s3_server() as filesystem:
        filesystem.mkdir("lake")
        yield filesystem


def run(config: Path, text: str, capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> dict[str, Any]:
    config.write_text(text)
    arguments = ["retention", "run", str(config), "--cmroot", "s3a://lake/cm", "--no-metastore", "--root", "s3a://lake"]
    create_or_open("s3a://lake/cm")
    found = command([*arguments, *more, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == code, json.dumps(answer, indent=1)
    return answer


def test_dated_versions_of_a_bucket_go_to_cmroot_and_come_back(
    lake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(ZoneInfo("America/Los_Angeles"))
    old, new = (f"{now - timedelta(days=age):%Y/%m/%d}" for age in (9, 1))
    for day in (old, new):
        for name in ("part-0", ".meta/part-1"):
            lake.pipe(f"lake/user/gobblin/data/event/daily/{day}/{name}", f"{day} {name}".encode())
    before = set(lake.find("lake/user"))
    plan = run(tmp_path / "job.conf", examples.SEVERAL_KINDS, capsys, "--dry-run")
    assert [(item["files"], item["bytes"]) for item in plan["items"]] == [(2, 17 + 23)]
    done = run(tmp_path / "job.conf", examples.SEVERAL_KINDS, capsys)
    assert (done["removed"], done["files"]) == (1, 2)
    assert set(lake.find("lake/user")) == {name for name in before if new in name}
    assert command(["audit", "restore", "--cmroot", "s3a://lake/cm", "--run", done["run"]]) == 0
    assert set(lake.find("lake/user")) == before


def test_single_objects_are_versions_and_directories_have_no_time(
    lake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "sub/c"):
        lake.pipe(f"lake/files/set/{name}", b"1")
    config = (
        'gobblin.retention { dataset { pattern = "/files/*", finder.class = GlobCleanableDatasetFinder }\n'
        "version.finder.class = %s\n"
        "selection { policy.class = NewestKSelectionPolicy, newestK.versionsNotSelected = 1 } }"
    )
    failed = run(tmp_path / "job.conf", config % "GlobModTimeDatasetVersionFinder", capsys, code=3)
    assert "has no modification times of directories" in failed["failed"][0]["why"]
    done = run(tmp_path / "job.conf", config % "FileLevelTimestampVersionFinder", capsys)
    assert done["removed"] == 2 and len(lake.find("lake/files")) == 1


def test_an_object_whose_name_leads_elsewhere_is_noted_and_never_followed(lake: Any) -> None:
    """A bucket takes the name `..`: what it holds is no version, and what lies above is not listed through it."""
    for name in ("sets/one/a", "sets/one/../other/b", "sets/one//c", "else/d"):
        lake.pipe(f"lake/{name}", b"1")
    found = Found()
    assert [each.path for each in files_below("s3a://lake/sets/one", found)] == ["s3a://lake/sets/one/a"]
    assert found.unnamed == ["s3a://lake/sets/one/.."]
    found = Found()
    assert list(glob("s3a://lake/sets/one/*/*", found)) == []
    assert found.unnamed == ["s3://lake/sets/one/.."]
    with pytest.raises(UnknownPlace, match="may lead anywhere"):
        list(files_below("s3a://lake/sets/one"))
