"""`legal-hold add`, `ls` and `release`: what no job may remove."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

from cmroot.pins import iso
from cmroot.root import create_or_open, open_existing
from replicator.commands.base import verb
from replicator.commands.of_policy import OfPolicy
from replicator.lifecycle.removal.audit import who
from replicator.lifecycle.removal.removal import (
    LegalHold,
    LegalHoldChanged,
    LegalHolds,
    add_hold,
    all_holds,
    release_hold,
)


@dataclass(frozen=True, kw_only=True)
class LegalHoldAddOptions(OfPolicy):
    """Arguments:

    name: the hold's: letters, digits, dot, dash, underscore.
    cmroot: the change-management root; made where there is none.
    pattern: a place, or a glob for "db.table" or "db.table/partition".
    reason: shown to whoever is refused.
    until: when it ends, ISO 8601; empty: never.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""
    pattern: str
    reason: str
    until: str = ""


@verb(LegalHoldAddOptions)
def legal_hold_add(options: LegalHoldAddOptions) -> LegalHoldChanged:
    """Adds a legal hold: no job removes what it covers, whatever its policy says. A hold on a table covers its
    partitions; one on a place, what lies below and above.

        replicator.legal_hold_add("case-17", cmroot="/cm", pattern="sales.orders/day=2026-*", reason="case 17")

    Raises Exists when there is one of this name, so a second run does nothing; UsageError for a hold that cannot be;
    FormatError when the holds of the root are lost."""
    root = create_or_open(options.cmroot).place
    hold = LegalHold(
        name=options.name,
        pattern=options.pattern,
        reason=options.reason,
        by=who(),
        created=iso(time.time()),
        until=options.until,
    )
    add_hold(root, hold)
    return LegalHoldChanged("added", root, options.name, hold)


@dataclass(frozen=True, kw_only=True)
class LegalHoldLsOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""


@verb(LegalHoldLsOptions)
def legal_hold_ls(options: LegalHoldLsOptions) -> LegalHolds:
    """Lists legal holds, also those that have ended. Changes nothing.

        replicator.legal_hold_ls(cmroot="/cm").holds

    Raises FormatError when there is no root, or a hold is damaged or their directory lost."""
    root = open_existing(options.cmroot).place
    return LegalHolds("shown", root, all_holds(root))


@dataclass(frozen=True, kw_only=True)
class LegalHoldReleaseOptions(OfPolicy):
    """Arguments:

    name: the hold's.
    cmroot: the change-management root.
    """

    needed: ClassVar = ("cmroot",)

    name: str = field(kw_only=False)
    cmroot: str = ""


@verb(LegalHoldReleaseOptions)
def legal_hold_release(options: LegalHoldReleaseOptions) -> LegalHoldChanged:
    """Releases a legal hold, also a damaged one; what it covered may be removed from now on.

        replicator.legal_hold_release("case-17", cmroot="/cm")

    Raises ObjectNotFound when there is none, as in a second run."""
    root = open_existing(options.cmroot).place
    release_hold(root, options.name)
    return LegalHoldChanged("released", root, options.name)
