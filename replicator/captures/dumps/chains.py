"""The next dump of a directory of dumps with data: an increment of the newest one, or from time to time a complete one.

The directory is leased while its next dump is decided and written, so two runs do not continue one dump twice. The
name of a directory has a digest of the source and scope: a killed dump is completed by the next run that wants the
same, and a directory may have the chains of several policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import xxhash

from cmroot.lease import acquire
from cmroot.store.place import Place, as_written
from replicator.captures.dumps.data import EXPIRED, Found, Group, created_of, find_dumps, group_of, needs_of
from replicator.captures.dumps.layout import FINISHED, SIGNATURE

CHAINS = "_chains"  # in the directory: its lease
STAMP = "%Y%m%dT%H%M%SZ"
SLACK = timedelta(hours=1)  # runs of one schedule do not take equally long


@dataclass(frozen=True)
class NextDump:
    """The next dump of a directory. place: its own directory, new or of a killed run. since: the dump that it
    continues; "": it is complete. warning: why it does not continue a chain that is young enough; "" otherwise."""

    place: str
    since: str = ""
    warning: str = ""


@dataclass(frozen=True)
class ChainWanted:
    """The chain to continue. every: the age of a chain at which the next one begins. signed: only a signed dump is
    continued."""

    group: Group
    every: timedelta
    signed: bool = False


@contextmanager
def continued(place: str, wanted: ChainWanted, now: float) -> Iterator[NextDump]:
    """Decides the next dump of a directory, which is made if it does not exist, and keeps its lease for the length of
    the block, in which the dump is written. now: in seconds. May be killed and run again.

    Raises LeaseHeld while another run writes into the directory, FormatError as `find_dumps`."""
    at = as_written(place)
    at.mkdirs(private=True)
    with acquire(str(at / CHAINS), "dump"):
        yield decided(place, wanted, now)


def decided(place: str, wanted: ChainWanted, now: float) -> NextDump:
    """Returns the next dump of a directory. Changes nothing. Raises FormatError as `find_dumps`."""
    at, moment = as_written(place), datetime.fromtimestamp(now, UTC)
    found, _ = find_dumps(at)
    newest, warning = to_continue(found, wanted, moment)
    if newest and wanted.signed and not (at / newest / SIGNATURE).exists():
        newest, warning = "", f"a new chain begins: {newest} is not signed"
    return NextDump(str(at / _name(at, wanted.group, moment)), str(at / newest) if newest else "", warning)


def to_continue(found: Found, wanted: ChainWanted, now: datetime) -> tuple[str, str]:
    """Returns the name of the dump that the next one continues ("": none), and the reason for a chain that ends before
    its time."""
    mine = [name for name, each in found.items() if each.data is not None and group_of(each) == wanted.group]
    if not mine:
        return "", ""
    newest = max(mine, key=lambda name: (found[name].end.position, found[name].begin is None, found[name].created))
    needs, broken = needs_of(found)[newest]
    if broken:
        return "", f"a new chain begins: dumps that {newest} needs are missing"
    began = max(created_of(found[name]) for name in (*needs, newest) if found[name].begin is None)
    due = now - began >= wanted.every - min(SLACK, wanted.every / 10)
    return ("" if due else newest), ""


def _name(place: Place, group: Group, now: datetime) -> str:
    """Returns the name of the directory that a killed run with the same source and scope has left, or a new one."""
    digest = f"{xxhash.xxh3_64_intdigest(repr(group).encode()) & 0xFFFFFFFF:08x}"
    ours, names = re.compile(rf"\d{{8}}T\d{{6}}Z(-\d+)?-{digest}"), place.list()
    for name in sorted(filter(ours.fullmatch, names), reverse=True):
        if not (place / name / FINISHED).exists() and not (place / name / EXPIRED).exists():
            return name
    stamp, number = now.strftime(STAMP), 1
    while (name := f"{stamp}{f'-{number}' if number > 1 else ''}-{digest}") in names:
        number += 1
    return name
