"""The `cm` commands as Python functions: each opens a `$cmroot`, does one thing, and returns what the command prints.

    from replicator import cm
    cm.hold("before-migration", cmroot="/w/cmroot")
    cm.expire(cmroot="/w/cmroot", older_than=timedelta(days=7))

`at` is an event id, a time, or the directory of a finished dump. Errors are those of `replicator.errors`, `engine` and
`spark` as in `replicator.api`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cmroot.check import Checked
from cmroot.expire.expire import Expired
from cmroot.keep.restore import Restored
from cmroot.log.compact import Compacted
from cmroot.rehearsal import looked_at
from cmroot.root import open_existing
from cmroot.store.place import normal
from replicator.api import given_engine
from replicator.commands.base import EngineGiven
from replicator.pitr import files, kept, pins, upkeep
from replicator.pitr.clock import IDLE
from replicator.pitr.files import FoundList
from replicator.pitr.kept import LIMIT, KeptList
from replicator.pitr.pins import PinList, Pinned
from replicator.pitr.upkeep import PATIENCE


def ls(
    *,
    cmroot: str,
    table: str = "",
    needed_by: str = "",
    limit: int = LIMIT,
    engine: EngineGiven = None,
    spark: Any = None,
) -> KeptList:
    """What is kept, the largest first; see replicator.pitr.kept.list_kept."""
    with given_engine(engine, spark) as work:
        return kept.list_kept(open_existing(cmroot), work, table=table, need=needed_by, limit=limit)


def find(*, cmroot: str, path: str = "", table: str = "", checksum: str = "", limit: int = LIMIT) -> FoundList:
    """Files of the past; see replicator.pitr.files.find_files."""
    return files.find_files(open_existing(cmroot), path=path, table=table, checksum=checksum, limit=limit)


def restore(
    what: str, *, cmroot: str, to: str | None = None, at: str | None = None, overwrite: bool = False
) -> Restored:
    """Puts one kept file back; see replicator.pitr.files.put_back."""
    return files.put_back(open_existing(cmroot), what, to, at=at, overwrite=overwrite)


def slots(*, cmroot: str, held: bool = True, engine: EngineGiven = None, spark: Any = None) -> PinList:
    """Slots, holds and dumps; with `held` what each holds back. See replicator.pitr.pins.list_pins."""
    with given_engine(engine, spark) as work:
        return pins.list_pins(open_existing(cmroot), work if held else None)


def create_slot(name: str, *, cmroot: str, at: str | None = None, consumer: str = "") -> Pinned:
    """Registers a consumer; see replicator.pitr.pins.create_slot."""
    return pins.create_slot(open_existing(cmroot), name, at, consumer=consumer)


def confirm_slot(name: str, *, cmroot: str, at: str, back: bool = False) -> Pinned:
    """Says how far a consumer has come; see replicator.pitr.pins.confirm_slot."""
    return pins.confirm_slot(open_existing(cmroot), name, at, back=back)


def drop_slot(name: str, *, cmroot: str) -> Pinned:
    """Forgets a consumer; see replicator.pitr.pins.drop_slot."""
    return pins.drop_slot(open_existing(cmroot), name)


def hold(name: str, *, cmroot: str, at: str | None = None, reason: str = "") -> Pinned:
    """Keeps a moment; see replicator.pitr.pins.hold."""
    return pins.hold(open_existing(cmroot), name, at, reason=reason)


def release(name: str, *, cmroot: str, dump: bool = False) -> Pinned:
    """Lets go of a hold, or of the pin of a dump; see replicator.pitr.pins.release."""
    return pins.release(open_existing(cmroot), name, dump=dump)


def plan_expiry(
    *,
    cmroot: str,
    older_than: timedelta,
    max_slot_lag: timedelta | None = None,
    idle: timedelta = IDLE,
    engine: EngineGiven = None,
    spark: Any = None,
) -> dict[str, Any]:
    """What an expiry would do, as the command tells it with `--dry-run`."""
    with given_engine(engine, spark) as work, looked_at(cmroot) as (root, words):
        planned = upkeep.plan_expired(root, work, older_than, max_slot_lag=max_slot_lag, idle=idle)
        return {**planned, "root": normal(cmroot), "warnings": [words] if words else []}


def expire(
    *, cmroot: str, older_than: timedelta, max_slot_lag: timedelta | None = None, wait: timedelta = PATIENCE,
    idle: timedelta = IDLE, engine: EngineGiven = None, spark: Any = None,
) -> Expired:  # fmt: skip
    """Removes what nobody needs; see cmroot.expire. `wait`: for the lease of another run. `idle`: how long ago the
    newest capture may have been. Raises Refused."""
    with given_engine(engine, spark) as work:
        return upkeep.expire_root(
            open_existing(cmroot), work, older_than, max_slot_lag=max_slot_lag, patience=wait, idle=idle
        )  # fmt: skip


def check(
    *, cmroot: str, bytes: bool = True, limit: int = LIMIT, engine: EngineGiven = None, spark: Any = None
) -> Checked:
    """Compares everything with what it should be; see cmroot.check."""
    with given_engine(engine, spark) as work:
        return upkeep.check_root(open_existing(cmroot), work, bytes=bytes, limit=limit)


def compact(*, cmroot: str, wait: timedelta = PATIENCE) -> Compacted:
    """Merges small segments of the log; see cmroot.log.compact."""
    return upkeep.compact_log(open_existing(cmroot), patience=wait)
