"""Assets and requests as values: who may bring data in, and what somebody wants to be landed."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from replicator.core.connections.source_config import ClassConfig, IngestionConfig
from replicator.core.model import Value
from replicator.errors import Refused, UsageError

Classification = Literal["public", "internal", "confidential", "personal"]
Mode = Literal["overwrite", "append", "merge"]
SchemaPolicy = Literal["fail", "recreate", "add_columns"]
Format = Literal["parquet", "orc"]

NAME = re.compile(r"[a-z0-9_]{1,128}", re.ASCII)
"""Of a database or a table, as every metastore takes it."""


def is_text(text: str) -> bool:
    """Whether every database can keep it: no NUL, and nothing that is not UTF-8."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


class Asset(Value, frozen=True, omit_defaults=True):
    """The unit of management. owner, producers, consumers: names of users or groups. sources: names of
    `[ingestion.sources]`. erasure_ids, erasure_column: "db.table:column" of the ids of erased people, and the column of
    landed tables that holds such an id; `exemption`: why a personal asset has none. retention: a duration, for the
    versions of its landing tables. approved_by: empty until somebody else than who made it has approved it."""

    name: str
    owner: str
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    classification: Classification = "internal"
    erasure_ids: str | None = None
    erasure_column: str | None = None
    exemption: str = ""
    retention: str | None = None
    note: str = ""
    created_by: str = ""
    approved_by: str = ""


class NotApproved(Refused):
    """Nobody has approved an asset as it is now."""


def is_same_person(one: str, other: str) -> bool:
    """Whether two users are one person, who may be known by the machine, and by the proxy as `proxy:NAME`."""
    return one.removeprefix("proxy:") == other.removeprefix("proxy:")


def check_approved(asset: Asset) -> None:
    """Raises NotApproved."""
    if not asset.approved_by:
        hint = f"somebody else than {asset.created_by} runs `replicator asset approve {asset.name}`"
        raise NotApproved(f"asset {asset.name} is not approved yet", hint=hint)


OF_A_CLASS = ("retention", "erasure_ids", "erasure_column")
"""What an asset has of its classification, where it says nothing."""


def with_class(asset: Asset, ingestion: IngestionConfig) -> Asset:
    """An asset with what `[ingestion.classes]` gives it: what it says itself wins, and one with an exemption is not
    given a way to erase people."""
    given = ingestion.classes.get(asset.classification, ClassConfig())
    names = [name for name in OF_A_CLASS if name == "retention" or not asset.exemption.strip()]
    found = {name: getattr(given, name) for name in names if getattr(asset, name) is None}
    return msgspec.structs.replace(asset, **found)


class Split(Value, frozen=True, omit_defaults=True):
    """In which ranges a table is read. column: None: the first column of the primary key, or none. readers: None: as
    the source says."""

    column: str | None = None
    readers: int | None = None


class Request(Value, frozen=True, omit_defaults=True):
    """schema, table: at the source. mode: overwrite: all rows, instead of those that are there; append: rows whose
    `watermark` is greater than all that were landed, as a partition of their own; merge: these, instead of rows with
    the same `key`."""

    asset: str
    source: str
    schema: str
    table: str
    mode: Mode = "overwrite"
    watermark: str | None = None
    key: tuple[str, ...] = ()
    split: Split = Split()
    format: Format = "parquet"
    schema_policy: SchemaPolicy = "fail"
    requested_by: str = ""
    note: str = ""

    @property
    def identity(self) -> str:
        """Of its source: requests with the same one are about the same landing table."""
        return msgspec.json.encode([self.asset, self.source, self.schema, self.table]).decode()

    @property
    def place(self) -> str:
        """Where it comes from, for people and the log."""
        return f"{self.source}:{self.schema}.{self.table}"

    @property
    def target(self) -> tuple[str, str]:
        """Database and table of the landing table. Raises UsageError for names that a metastore does not take."""
        database, table = f"{self.asset}_{self.schema}".lower(), self.table.lower()
        for what, name in (("database", database), ("table", table)):
            if not NAME.fullmatch(name):
                raise UsageError(
                    f"{self.place}: its landing {what} cannot be called {name!r}",
                    hint="a metastore takes up to 128 letters, digits and underscores; make a view of such a name in "
                    "the source",
                )
        return database, table


class PartRequest(Request, frozen=True, omit_defaults=True):
    """For a table that nested rows were taken apart into. whole: the table of the rows; part: its name among them, in
    lower case."""

    whole: str = ""
    part: str = ""

    @property
    def place(self) -> str:
        """Never that of a table of this name at the source."""
        return f"{self.source}:{self.schema}.{self.whole}#{self.part}"
