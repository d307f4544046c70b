"""A retention of Delta tables that dies: `killed_delta_retention.py STEP before|after ARGUMENTS`. The step is a method
of `DeltaActions`, or `remove`: the removal of a second file of a log. With `meets` in place of the moment it dies
nowhere: another writer appends a row before the step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from cmroot.store.place import Place
from replicator.cli.main import main
from replicator.lifecycle.removal.delta_actions import DeltaActions

ROW = (1_000_000, "of the writer")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def changed(step: str, moment: str) -> Any:
    own = getattr(DeltaActions, step)

    def method(self: Any, *arguments: Any, **named: Any) -> None:
        if moment == "meets":
            with self._configured():
                frame = self._session.createDataFrame([ROW], "id BIGINT, note STRING")
                frame.write.format("delta").mode("append").save(self._path)
        elif moment == "before":
            die()
        own(self, *arguments, **named)
        if moment == "after":
            die()

    return method


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
        setattr(DeltaActions, step, changed(step, moment))
    sys.argv[1:] = sys.argv[3:]
    main()
