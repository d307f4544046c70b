"""Small histories for tests: a warehouse's files, captured into a root by hand, as the log records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from cmroot.keep.keepers import CopyKeeper, Kept, LinkKeeper
from cmroot.log.captured import FILES, Segment, SegmentWriter, segments
from cmroot.root import create_or_open


@dataclass
class History:
    """A root and a source; each `capture` is a segment of one record. Files are `table/path`, in a database `db`."""

    root: str
    source: Path
    keeper: str = "link"
    live: dict[str, tuple[Kept, int]] = field(default_factory=dict)  # content and since when, by name

    @classmethod
    def begin(cls, top: Path, root: str | None = None, keeper: str = "link") -> History:
        place = root or create_or_open(str(top / "cmroot")).place
        return cls(place, top / "source", keeper)

    def write(self, name: str, content: bytes) -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # as writers do: a new file, never into the old one
        path.write_bytes(content)
        return path

    def capture(self, *added: str, gone: tuple[str, ...] = (), time: int | None = None, **more: Any) -> Segment:
        """Record that files are there (again), and that others are gone. `more`: columns of all added rows."""
        log = segments(self.root)
        position = log[-1].last + 1 if log else 1
        rows = []
        for name in (*added, *gone):
            if name in self.live:
                kept, since = self.live.pop(name)
                rows.append(self._row("release", position, name, kept) | {"since": since})
            if name in gone:
                rows.append(self._row("remove", position, name, None))
                (self.source / name).unlink(missing_ok=True)
            else:
                keeper = LinkKeeper(self.root) if self.keeper == "link" else CopyKeeper(self.root)
                kept = keeper.keep(str(self.source / name))
                self.live[name] = kept, position
                rows.append(self._row("add", position, name, kept) | more)
        with SegmentWriter(self.root, position) as writer:
            writer.append_record(b'{"position":%d}' % position)
            if rows:
                writer.append_files(pa.Table.from_pylist(rows, schema=FILES))
            return writer.finish(position, event=100 + position, time=time or 1000 * position, keeper=self.keeper)

    def _row(self, op: str, position: int, name: str, kept: Kept | None) -> dict[str, Any]:
        table, _, path = name.partition("/")
        row = {
            "position": position,
            "op": op,
            "db": "db",
            "table": table,
            "partition": "",
            "path": path,
            "location": f"file:{self.source / table}",
        }
        if kept is None:
            return row
        known = {"size": kept.size, "mtime_ns": kept.mtime_ns, "identity": kept.identity, "checksum": kept.checksum}
        return row | known | {"kept": True}
