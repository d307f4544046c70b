"""Hive's layout, whose files are the table, and formats that are recognised and named, but not replicated."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.formats.interface import Signs, TableFormat, with_log


@dataclass(frozen=True)
class _Index(TableFormat):
    def recognises(self, signs: Signs) -> bool:
        return signs.is_index


@dataclass(frozen=True)
class _OtherSystem(TableFormat):
    def recognises(self, signs: Signs) -> bool:
        return bool(signs.properties.get("storage_handler"))


@dataclass(frozen=True)
class _Plain(TableFormat):
    @property
    def is_plain(self) -> bool:
        return True


PLAIN = _Plain("plain", title="Hive")
PAIMON = with_log(
    TableFormat(
        "paimon",
        "a Paimon table",
        "Paimon",
        types=("paimon",),
        readers=("org.apache.paimon.",),
        left_out="a Paimon table: its snapshots define which files are valid",
        own_columns=True,
    )
)
OTHER_SYSTEM = _OtherSystem("handler", title="storage handler", no_purge="its data is stored by {handler}")
INDEX = with_log(
    _Index(
        "index",
        "the table of an index",
        "Index",
        left_out="the table of an index, which is not replicated: its rows can be computed from the indexed table",
    )
)
