"""Claims: a property of a target database that names the load that is writing to it and excludes all others.

A load holds the lease of a `$cmroot`, which excludes loads that name the same root. The database's property
`replicator.loading.by` names that root and the lease's epoch, and so excludes all others. It requires no renewal: a
claim is valid as long as that lease is held at that epoch. A metastore has no compare-and-set for databases, so a claim
is checked before it is written, read back after, and read again before the target's metadata is committed: of two loads
that begin at the same time, the first to write stops. Only a load that pauses between reading and writing for the
entire duration of the other overwrites its checkpoint; the data it then loads is complete up to its own dump's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from cmroot.errors import Error
from cmroot.lease import Holder, acquire, held_at
from cmroot.root import open_existing
from replicator.errors import LeaseHeld
from replicator.replay.apply.staging import give_up_attempts
from replicator.replay.target import standing

CLAIM = "replicator.loading.by"  # property of a target database: the load running on it, as a Claim; "": none
_VERSION = 1


class Claim(msgspec.Struct, frozen=True):
    """root, root_id: the target's `$cmroot` whose lease the load holds, at `epoch`; the other fields are for users."""

    version: int
    root: str
    root_id: str
    epoch: int
    dump: str
    host: str
    pid: int
    since: str

    def parameters(self) -> dict[str, str]:
        """Returns the claim as properties of a database."""
        return {CLAIM: msgspec.json.encode(self).decode()}


@dataclass(frozen=True)
class Claims:
    """The claim of one load. take_over: another load's claim is ignored if its root cannot be queried."""

    own: Claim
    take_over: bool = False

    @classmethod
    def of(cls, root: str, holder: Holder, dump: str, *, take_over: bool = False) -> Claims:
        """Returns a load's claim. root: the target's `$cmroot`; holder: of its lease, which the load holds."""
        id = open_existing(root).id
        return cls(Claim(_VERSION, root, id, holder.epoch, dump, holder.host, holder.pid, holder.since), take_over)

    def may_begin(self, database: str, parameters: Mapping[str, str], *, planned: tuple[str, str]) -> None:
        """Raises LeaseHeld if another load is, or may be, running on a database of the target, or has been since the
        load was planned (`planned`: its `standing` then). Ends remaining attempts of a load that was killed."""
        other = claim_of(parameters)
        if other != self.own and standing(parameters) != planned:
            raise LeaseHeld(
                f"database {database} of the target was changed by another load while this one was planned",
                hint="run the same load again",
            )
        if other is None or other.root_id == self.own.root_id:  # we hold the lease that it names
            return
        who = (
            f"database {database} of the target is being loaded ({other.dump}) by process {other.pid} on {other.host} "
            f"since {other.since}, under $cmroot {other.root}"
        )
        alive = _is_alive(other)
        if alive:
            raise LeaseHeld(
                who, hint="wait for it to end; loads into one database run one at a time under one --cmroot"
            )
        if alive is None and not self.take_over:
            raise LeaseHeld(
                f"{who}; whether it still runs cannot be checked from this host",
                hint=f"check on {other.host}; if it no longer runs, load with --take-over, or with "
                f"--target-cmroot {other.root}",
            )
        if alive is False:
            _end(other)

    def still(self, database: str, parameters: Mapping[str, str]) -> None:
        """Raises LeaseHeld if the database has since been claimed by another load."""
        other = claim_of(parameters)
        if other != self.own:
            whose = f"process {other.pid} on {other.host} under $cmroot {other.root}" if other else "no process"
            raise LeaseHeld(
                f"database {database} of the target is now being loaded by {whose}, and no longer by this load",
                hint="wait for that load to end, then run the same load again",
            )


def claim_of(parameters: Mapping[str, str]) -> Claim | None:
    """Returns the claim on a database; None if there is none, or if a release without claims is loading. Raises
    LeaseHeld if it cannot be read, as it may be valid."""
    text = parameters.get(CLAIM)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Claim)
    except msgspec.DecodeError as error:
        raise LeaseHeld(
            f"{CLAIM}={text} cannot be parsed: {error}",
            hint="a newer release may be loading; if no load is running, set this property of the database to ''",
        ) from error


def _end(claim: Claim) -> None:
    """Ends tasks of a killed load, which may still run elsewhere; without their notes they publish nothing. If its
    lease is held by another load, that one has done so."""
    with suppress(LeaseHeld), acquire(claim.root, "take over a load"):
        give_up_attempts(claim.root)


def _is_alive(claim: Claim) -> bool | None:
    """Returns True if the lease that a claim names is held; None if its root cannot be queried from here."""
    try:
        if open_existing(claim.root).id != claim.root_id:  # another machine's path
            return None
        return held_at(claim.root, claim.epoch)
    except (Error, OSError):
        return None
