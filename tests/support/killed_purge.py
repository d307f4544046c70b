"""A purge command that dies at a step of a table's own commits: `killed_purge.py STEP before|after|halfway ARGUMENTS`.
The step is a method of `IcebergLake` or, if STEP begins with `delta:` or `hudi:`, of `DeltaLake` or `HudiLake`; an
expiry of Iceberg that dies halfway has committed, and deleted no file. `killed_purge.py STEP ID ARGUMENTS` dies
nowhere: another writer adds two rows before the step, one with this id; and `killed_purge.py hudi:overlaps PLACE
ARGUMENTS`: the first delete makes `PLACE/begun` while it is in flight, and waits for `PLACE/met`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from replicator.cli.main import main
from replicator.core.text import quoted_name
from replicator.lifecycle.purge.delta_purge import DeltaLake
from replicator.lifecycle.purge.hudi_purge import HudiLake
from replicator.lifecycle.purge.iceberg_purge import IcebergLake
from replicator.lifecycle.removal.hudi_actions import HudiActions


def dying(lake: type, step: str, when: str) -> Any:
    own = getattr(lake, step)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if when == "halfway":
            expiry = self._loaded().expireSnapshots().expireOlderThan(0)
            for each in arguments[0]:
                expiry = expiry.expireSnapshotId(each)
            expiry.cleanExpiredFiles(False).commit()
        found = own(self, *arguments, **named) if when == "after" else None
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    return method


def meeting(lake: type, step: str, id_: str) -> Any:
    own, met = getattr(lake, step), list[str]()

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not met:
            met.append(id_)
            rows = [(id_, f"about-{id_[-4:]}", 0), ("person-of-the-writer", "late", 1)]
            frame = self._session.createDataFrame(rows, "who STRING, note STRING, n BIGINT")
            if lake is IcebergLake:
                frame.writeTo(quoted_name(*self._table_name)).append()
            elif lake is HudiLake:
                frame.createOrReplaceTempView("late")
                name = quoted_name(*self._actions._table_name)
                self._session.sql(f"insert into {name} select who, note, n, 'p1' from late").collect()
            else:
                with self._actions._configured():
                    frame.write.format("delta").mode("append").save(self._actions._path)
        return own(self, *arguments, **named)

    return method


def overlapping(place: str) -> Any:
    own, met = HudiActions.delete, list[str]()

    def method(self: Any, keys: Any, column: str, view: str) -> None:
        if met:
            return own(self, keys, column, view)
        met.append(place)
        timeline, support = Path(self._path.removeprefix("file:"), ".hoodie/timeline"), str(Path(__file__).parent)
        earlier = set(timeline.glob("*.commit.requested"))

        def waited(value: str) -> str:
            sys.path.append(support)  # in Spark's worker
            from waiting import eventually

            if set(timeline.glob("*.commit.requested")) - earlier:
                Path(place, "begun").touch()
                eventually(Path(place, "met").exists)
            return value

        self._session.udf.register("waited", waited, "string")
        return own(self, keys, f"waited({column})", view)

    return method


if __name__ == "__main__":
    name, moment = sys.argv[1:3]
    format, _, name = name.rpartition(":")
    lake: type = {"delta": DeltaLake, "hudi": HudiLake, "": IcebergLake}[format]
    kills = moment in ("before", "after", "halfway")
    if name == "overlaps":
        HudiActions.delete = overlapping(moment)  # type: ignore[method-assign]
    else:
        setattr(lake, name, dying(lake, name, moment) if kills else meeting(lake, name, moment))
    sys.argv[1:] = sys.argv[3:]
    main()
