"""Reports: what a command did, as a value that prints as the JSON the command line gives."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, cast, get_args, get_type_hints

import msgspec


class Report:
    """A dataclass or struct that says what a command did. `print(report)` gives what `--json` gives."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the command line."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """A table of the fields, as notebooks show it."""
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.to_dict().items()
        )
        return f"<table>{''.join(rows)}</table>"


@dataclasses.dataclass(kw_only=True)
class CopyCounts(Report):
    """Counts of copied files, by the origin of their bytes; files_skipped: already in place. `before`: the field of a
    report that follows them in its JSON; "": the first."""

    files_copied: int = 0
    bytes_copied: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_skipped: int = 0
    before: ClassVar[str] = ""

    def count(self, done: CopyCounts) -> None:
        """Adds the counts that both have."""
        for name in self._counts():
            setattr(self, name, getattr(self, name) + getattr(done, name, 0))

    def to_dict(self) -> dict[str, Any]:
        found, counts = super().to_dict(), self._counts()
        others = [name for name in found if name not in counts]
        at = others.index(self.before) if self.before else 0
        return {name: found[name] for name in (*others[:at], *counts, *others[at:])}

    def _counts(self) -> list[str]:
        return [each.name for each in dataclasses.fields(LoadCounts) if hasattr(self, each.name)]


@dataclasses.dataclass(kw_only=True)
class LoadCounts(CopyCounts):
    """Counts of all that a load changed."""

    files_removed: int = 0
    objects_changed: int = 0


class Rows(Report):
    """A report that is a list: `listed` is the field with its rows. columns: their names, where the field's type does
    not tell them."""

    listed: ClassVar[str]
    columns: ClassVar[Sequence[str]] = ()

    def rows(self) -> list[dict[str, Any]]:
        """The rows as mappings, as JSON has them."""
        return list(self.to_dict()[self.listed])

    def to_arrow(self) -> Any:
        """The rows as a pyarrow.Table, which pandas, Polars, DuckDB and Spark read."""
        return table_of(self.rows(), self.columns or listed_columns(cast(Hashable, type(self)), self.listed))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Mappings as a pyarrow.Table: `columns`, and what else rows have."""
    import pyarrow as pa  # not for every command that has a report

    names = dict.fromkeys((*columns, *(name for row in rows for name in row)))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


@functools.cache
def listed_columns(kind: Hashable, listed: str) -> tuple[str, ...]:
    """Of the dataclasses or structs that a field lists."""
    (row,) = get_args(get_type_hints(kind)[listed])
    kinds = get_args(row) or (row,)
    names = (
        each.__struct_fields__ if hasattr(each, "__struct_fields__") else [one.name for one in dataclasses.fields(each)]
        for each in kinds
    )
    return tuple(dict.fromkeys(name for each in names for name in each))


def _cell(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
