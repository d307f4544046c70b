"""A source that changes in every way there is, round after round."""

from __future__ import annotations

from plain_tables import PlainDatabase


class BusySource:
    """Changes of every kind, round after round, on one database."""

    def __init__(self, database: PlainDatabase, *, tables: int = 2, partitions: int = 4) -> None:
        self.database, self.tables, self.partitions = database, tables, partitions
        self.round = 0

    def begin(self) -> None:
        self.database.create()
        for number in range(self.tables):
            files = {"kept": f"{number}", "replaced": f"old {number}", "removed": f"removed {number}"}
            self.database.table(f"t{number}", files)
        self.database.partitioned("parts", {f"{number:03}": self._files(number) for number in range(self.partitions)})
        self.database.table("dropped0", {"file": "dropped 0"})
        self.database.table("renamed0", {"file": "renamed"})
        self.database.table("anew", {"file": "anew 0", "first": "first"})
        self.database.partitioned("cycle0", {"short": {"file": "short 0"}, "long": {"file": "long 0"}})
        for name in ("live", "stage", "left", "right", "young0"):
            self.database.table(name, {"file": f"{name} 0"})
        self.database.function("f0")

    def change(self) -> None:
        database, before, now = self.database, self.round, self.round + 1
        self.round = now
        for number in range(0, self.tables, 2):
            database.write(f"t{number}", {f"added{now}": f"{number} {now}", "replaced": f"new {number} {now}"})
            (database.home / f"t{number}" / ("removed" if now == 1 else f"added{before}")).unlink()
        database.alter("t0", round=str(now))
        values = sorted(path.name.removeprefix("p=") for path in (database.home / "parts").iterdir())
        gone, altered, written = values[0], values[1], values[2]
        database.drop_partitions("parts", [gone])
        database.alter_partition("parts", altered, round=str(now))
        database.write(f"parts/p={written}", {"more": f"more {now}"})
        added = [f"{now * 1000 + number:06}" for number in range(max(1, self.partitions // 8))]
        database.add("parts", {value: self._files(int(value)) for value in added})
        database.drop(f"dropped{before}")
        database.table(f"dropped{now}", {"file": f"dropped {now}"})
        database.rename(f"renamed{before}", f"renamed{now}")
        database.write(f"renamed{now}", {f"after{now}": f"renamed {now}"})
        database.drop("anew")
        database.table("anew", {"file": f"anew {now}"})
        database.rename(f"young{before}", f"grown{before}")
        database.table(f"young{now}", {"file": f"young {now}"})
        database.drop_partitions(f"cycle{before}", ["short"])
        database.partitioned(f"cycle{now}", {"short": {"file": f"short {now}"}, "long": {"file": f"long {now}"}})
        if now > 1:
            database.drop(f"grown{before - 1}")
            database.drop(f"cycle{before - 1}")
        database.drop("live")
        database.rename("stage", "live")  # under the name of one that is gone
        database.table("stage", {"file": f"stage {now}"})
        for old, new in (("left", "aside"), ("right", "left"), ("aside", "right")):
            database.rename(old, new)
        database.function(f"f{now}")
        if now > 1:
            database.metastore.drop_function(database.name, f"f{before}")

    def _files(self, number: int) -> dict[str, str]:
        return {"file": f"content of {number}", "other": f"{number}"}
