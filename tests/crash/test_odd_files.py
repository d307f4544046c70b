"""Files in a root that are no files: FIFOs, sockets, devices, links, directories, names that are not UTF-8, huge ones.
No command hangs, fills its memory, follows a link, or ends with an internal error; each names what it found."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import command
from small_root import HOUR, NOW, SmallRoot

from cmroot.root import create_or_open


def fifo(place: Path) -> None:
    os.mkfifo(place)


def bound_socket(place: Path) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name)
    finally:
        os.chdir(here)


def link_to_zero(place: Path) -> None:
    place.symlink_to("/dev/zero")


def link_to_etc(place: Path) -> None:
    place.symlink_to("/etc")


def directory(place: Path) -> None:
    (place / "inside").mkdir(parents=True)


def huge(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def not_text(place: Path) -> None:
    Path(os.fsdecode(os.fsencode(place.parent) + b"/\xff" + os.fsencode(place.name))).write_bytes(b"{}")


KINDS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (fifo, bound_socket, link_to_zero, link_to_etc, directory, huge, not_text)
}
PLACES = (
    "holds/h",
    "slots/s",
    "dumps/d",
    "taking/t",
    "taking/u/journal.json",
    "snapshots/s",
    "files/ab/x",
    "files/odd",
    "expiring/1-2-ab",
    "log/00000000000000000003-00000000000000000003/_segment.json",
    "log/odd",
    "incoming/copy-1-ab",
    "odd",
)
COMMANDS = (
    ("cm", "ls"),
    ("cm", "check"),
    ("cm", "expire", "--older-than", "1h", "--dry-run"),
    ("cm", "expire", "--older-than", "1h"),
    ("cm", "slots"),
    ("cm", "compact"),
)


def made(place: Path) -> Path:
    create_or_open(str(place))
    small = SmallRoot(str(place))
    small.keep("a", "b")
    small.capture(add="a b", at=NOW - 3 * HOUR)
    small.capture(release="a@1", at=NOW - 2 * HOUR)
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_root_is_read_by_no_command(tmp_path: Path, kind: str) -> None:
    for number, place in enumerate(PLACES):
        root = made(tmp_path / str(number))
        odd = root / place
        odd.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](odd)
        for words in COMMANDS:
            answer = command(*words, "--cmroot", str(root))
            assert not answer.message.startswith("internal error"), (place, words, answer)
            assert "/etc/" not in str(answer.output), (place, words, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_pin_is_named_and_nothing_is_removed(tmp_path: Path, kind: str) -> None:
    for number, name in enumerate(("holds", "slots", "dumps")):
        root = made(tmp_path / str(number))
        (root / name).mkdir(exist_ok=True)
        KINDS[kind](root / name / "odd")
        answer = command("cm", "expire", "--older-than", "1h", "--cmroot", str(root))
        assert answer.code == 1 and f"/{name}/" in answer.message, answer
