"""Figures of files at their source."""

from __future__ import annotations

import bz2
import gzip
from decimal import Decimal
from pathlib import Path

import pytest

from replicator.errors import SourceRefused
from replicator.ingestion import file_figures
from replicator.ingestion.file_description import Description, FileColumn, parts_of
from replicator.ingestion.file_figures import FilesTask, figures_of_some

FIELDS = [{"name": "id", "type": "long"}, {"name": "t", "type": "string"}]
PARTS = tuple(parts_of({"type": "struct", "fields": FIELDS}))
DESCRIPTION = Description(format="csv", columns=(FileColumn("id", "bigint"), FileColumn("t")))


def test_a_row_of_csv_may_be_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more rows before it than a block has, which are counted once; compressed, too."""
    content = b"id,t\n" + b"1,x\n" * 500_000 + b"2," + b"y" * 3_000_000 + b"\n3,\n"
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content, 1))
    (tmp_path / "c.csv.bz2").write_bytes(bz2.compress(content, 1))
    task = FilesTask(str(tmp_path), ("a.csv", "b.csv.gz", "c.csv.bz2"), DESCRIPTION, PARTS)
    rows, counts, sums = figures_of_some(task)[""]
    assert (rows, counts) == (3 * 500_002, {"id": 3 * 500_002, "t": 3 * 500_001})
    assert Decimal(sums["id"]) == 3 * 500_005
    monkeypatch.setattr(file_figures, "LONGEST", 1 << 21)
    with pytest.raises(SourceRefused, match="a row has more than 2,097,152 bytes"):
        figures_of_some(task)
