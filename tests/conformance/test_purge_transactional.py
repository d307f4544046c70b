"""Purges of Hive's transactional tables: Hive writes and compacts them, and reads what stays with its row ids; pyarrow
looks for the erased rows in all files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.orc as orc
import pytest
from acid_tables import AcidLab, acid_lab
from command_line import Answer
from pool import Pool

pytestmark = pytest.mark.removals

PERSONS = """'dataset.descriptor'='{"privacy": {"column": "id"}}'"""


@pytest.fixture
def acid(pool: Pool, tmp_path: Path) -> Iterator[AcidLab]:
    with acid_lab(pool, tmp_path) as made:
        made.run("create external table {db}.gone (id int) stored as textfile")
        yield made


def purge(lab: AcidLab, *more: str, ids: tuple[int, ...] = (2, 20)) -> Answer:
    """Erases rows in a process of its own, and certifies that."""
    home = lab.source.home / "gone"
    (home / "ids").write_text("".join(f"{each}\n" for each in ids))
    place = ["--metastore", lab.source_uri, "--cmroot", str(lab.cmroot), "--ids", f"{lab.side}.gone:id"]
    words = ["purge", "run", *place, "--table-whitelist", lab.side, "--field-path", "privacy.column", *more]
    done = subprocess.run(
        [sys.executable, "-m", "replicator", *words, "--json"], capture_output=True, text=True, env=dict(os.environ)
    )
    return Answer(done.returncode, json.loads(done.stdout))


def values(home: Path, column: str = "id") -> list[int]:
    """All ids in all files of rows, whoever reads these."""
    found: list[int] = []
    for path in sorted(home.rglob("*")):
        if path.is_file() and path.name.startswith(("bucket_", "000")):
            table: Any = orc.read_table(str(path))
            rows = table["row"].to_pylist() if "row" in table.column_names else table.to_pylist()
            found += [row[column] for row in rows if row]
    return sorted(found)


def test_rows_are_erased_from_all_directories_and_the_others_keep_their_ids(acid: AcidLab) -> None:
    acid.make()
    acid.run("alter table {db}.t set tblproperties (" + PERSONS + ")")
    acid.insert(1, 2, 3, 20)
    acid.run("update {db}.t set name = 'B' where id in (2, 3)", "delete from {db}.t where id = 20")
    acid.rolled_back("insert into {db}.t values (2, 'aborted')")
    acid.insert(4, 2)
    acid.replicate()
    wanted = [row for row in acid.rows() if row[1] != "2"]
    done = purge(acid)
    assert done.code == 0, json.dumps(done.output, indent=1)
    assert acid.rows() == wanted
    assert set(values(acid.source.home / "t")) == {1, 3, 4}
