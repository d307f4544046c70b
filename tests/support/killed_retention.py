"""A retention of Delta or Hudi tables that dies: `killed_retention.py STEP before|after ARGUMENTS`. The step is a
method of `DeltaActions` or `HudiActions`, or `remove`: the removal of a second file of a log. With `meets` in place of
the moment it dies nowhere: another writer appends a row before the step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from cmroot.store.place import Place
from replicator.cli.main import main
from replicator.lifecycle.removal.delta_actions import DeltaActions
from replicator.lifecycle.removal.hudi_actions import HudiActions

ROW = (1_000_000, "of the writer")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def changed(actions: type, step: str, moment: str) -> Any:
    own = getattr(actions, step)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if moment == "meets":
            with self._configured():
                append(self)
        elif moment == "before":
            die()
        found = own(self, *arguments, **named)
        if moment == "after":
            die()
        return found

    return method


def append(actions: Any) -> None:
    if isinstance(actions, HudiActions):
        actions._session.sql(f"insert into {'.'.join(actions._table_name)} values (1000, 7, 'p0')")
        return
    frame = actions._session.createDataFrame([ROW], "id BIGINT, note STRING")
    frame.write.format("delta").mode("append").save(actions._path)


def removing() -> Any:
    own, removed = Place.remove, list[str]()

    def method(self: Place) -> None:
        own(self)
        removed.extend([str(self)] if "/_delta_log/" in str(self) else [])
        if len(removed) == 2:
            die()

    return method


if __name__ == "__main__":
    step, moment = sys.argv[1:3]
    if step == "remove":
        Place.remove = removing()  # type: ignore[method-assign]
    else:
        actions = HudiActions if hasattr(HudiActions, step) else DeltaActions
        setattr(actions, step, changed(actions, step, moment))
    sys.argv[1:] = sys.argv[3:]
    main()
