"""Log files and HFiles that Hudi's releases have written, as `hudi_blocks` reads them; damaged ones are refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hudi_tables import VERSIONS, unpack

from cmroot.errors import FormatError
from cmroot.store.hudi_blocks import hfile_records, log_records


def one(place: Path, pattern: str) -> Path:
    (path,) = place.glob(pattern)
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_log_files_have_the_rows_of_updates(tmp_path: Path, version: str) -> None:
    unpack("mor", version, "first", tmp_path / "t")
    path = one(tmp_path / "t", "d=x/.*.log.*")
    rows = list(log_records(str(path), io.BytesIO(path.read_bytes())))
    assert [(row["id"], row["name"]) for _, row in rows] == [(1, "z")]
    assert {key for key, _ in rows} == {""}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_metadata_names_the_files_of_each_partition(tmp_path: Path, version: str) -> None:
    unpack("mor", version, "last", tmp_path / "t")
    names = set[str]()
    files = sorted((tmp_path / "t/.hoodie/metadata/files").iterdir(), key=lambda path: path.name.split("_")[-1])
    for path in files:
        read = hfile_records if path.suffix == ".hfile" else log_records if ".log." in path.name else None
        for key, record in read(str(path), io.BytesIO(path.read_bytes())) if read else ():
            if key.startswith("d="):
                names |= set(record["filesystemMetadata"])
    there = {path.name for path in (tmp_path / "t").glob("d=*/*") if path.name != ".hoodie_partition_metadata"}
    assert there <= names


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_files_are_refused(tmp_path: Path, version: str) -> None:
    unpack("mor", version, "first", tmp_path / "t")
    log = one(tmp_path / "t", "d=x/.*.log.*").read_bytes()
    hfile = min((tmp_path / "t/.hoodie/metadata/files").glob("*.hfile")).read_bytes()
    for data in (log[:-1], log[:40], b"?" + log, log + b"#HUDI#"):
        with pytest.raises(FormatError):
            list(log_records("l", io.BytesIO(data)))
    for data in (hfile[:60], b"?" * 100 + hfile, hfile[: hfile.rindex(b'TRABLK"$')]):
        with pytest.raises(FormatError):
            list(hfile_records("h", io.BytesIO(data)))
