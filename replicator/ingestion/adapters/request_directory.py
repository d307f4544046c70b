"""Requests as files in a directory: each is taken once, for its owner, and answered beside it.

DIRECTORY/orders.json                    a request, JSON or TOML
DIRECTORY/taking/ID~orders.json          at work; after a crash it is gone on with
DIRECTORY/orders.json.answer.json        what became of it
DIRECTORY/taken/ID~orders.json           done with

A file moves first, so nobody replaces it between two looks. ID is the key of its request: a file that is gone on with
makes no second job. `taking` and `taken` are this program's alone.
"""

from __future__ import annotations

import json
import os
import stat
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cmroot.text import shown
from replicator.core.connections.source_config import IngestionConfig
from replicator.errors import NotWritable, Refused, UsageError
from replicator.ingestion.adapters.ingestion_shown import RequestAnswer, RequestsTaken
from replicator.ingestion.adapters.intake import accept, parse_request, refusal, user_of
from replicator.ingestion.job_store import IngestionStore

LARGEST = 64 * 1024
"""Bytes of a request."""

LONGEST = 180
"""Bytes of a file's name: what is added to it has to fit, too."""

KINDS = (".json", ".toml")
ANSWER = ".answer.json"


def take_directory(store: IngestionStore, ingestion: IngestionConfig, directory: Path) -> RequestsTaken:
    """Takes all requests that are there, in the order of their names. Raises UsageError where there is no directory,
    Refused where somebody else has made one of ours in it, and what the store raises: then the rest stays."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: is no directory", hint="make it; who may write in it may make requests")
    taking, taken = _own(directory / "taking"), _own(directory / "taken")
    report = RequestsTaken("done", str(directory))
    for file in [*_left(taking), *_moved(directory, taking)]:
        name = file.name.partition("~")[2]
        answer = _answer(store, ingestion, file, name)
        report.requests.append(answer)
        _write(taking / f".{file.name}", directory / f"{name}{ANSWER}", answer)
        with suppress(FileNotFoundError):  # another one has gone on with it, too
            file.rename(taken / file.name)
    return report


def _own(directory: Path) -> Path:
    """A directory that nobody else writes in."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise NotWritable(f"{directory}: {error.strerror}", hint="let this user write in it") from error
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refused(f"{directory}: others may write in it", hint="remove the directory; the next run makes it")
    return directory


def _left(taking: Path) -> list[Path]:
    """Files that a run before this one has not ended with."""
    return sorted(file for file in taking.iterdir() if not file.name.startswith("."))


def _moved(directory: Path, taking: Path) -> Iterator[Path]:
    """Files that are requests, each moved before it is given."""
    for file in sorted(directory.iterdir()):
        name = file.name
        if (
            name.startswith(".")
            or name.endswith(ANSWER)
            or not name.endswith(KINDS)
            or len(os.fsencode(name)) > LONGEST
        ):
            continue
        if not stat.S_ISREG(file.lstat().st_mode):
            continue
        moved = taking / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}~{name}"
        with suppress(FileNotFoundError):  # another one was faster, or it was taken back
            yield file.rename(moved)


def _answer(store: IngestionStore, ingestion: IngestionConfig, file: Path, name: str) -> RequestAnswer:
    """What becomes of a request; it is of the file's owner."""
    answer = RequestAnswer(shown(name), "")
    try:
        values, owner = _read(file)
        requester = user_of(owner)
        answer.requested_by = requester.user
        key = f"file:{file.name.partition('~')[0]}"
        queued = accept(store, ingestion, parse_request(values, answer.name), requester, key)
    except Exception as error:
        refused = refusal(error, f"request {file.name}")
        answer.error, answer.hint = refused.message, refused.hint
    else:
        answer.queued(queued)
    return answer


def _read(file: Path) -> tuple[dict[str, Any], int]:
    """What a file says, and whose it is. Raises UsageError."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise UsageError("it has other names, too", hint="write a file of its own")
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", hint="let the service's user read it") from error
    if len(data) > LARGEST:
        raise UsageError(f"is larger than {LARGEST} bytes", hint="write one request")
    try:
        text = data.decode()
        values = tomllib.loads(text) if file.name.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read: {error}", hint="write one JSON object, or TOML, in UTF-8") from error
    if not isinstance(values, dict):
        raise UsageError("is no JSON object", hint="write one request in a file")
    return values, found.st_uid


def _write(aside: Path, place: Path, answer: RequestAnswer) -> None:
    """An answer, whole or not at all. Where one cannot be, the report and the job tell the same."""
    fields = {name: value for name, value in vars(answer).items() if value not in (None, "")}
    with open(aside, "w", encoding="utf-8") as file:
        file.write(json.dumps(fields, indent=2) + "\n")
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    try:
        aside.replace(place)
    except OSError:
        aside.unlink()
