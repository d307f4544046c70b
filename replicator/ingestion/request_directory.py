"""Requests as files in a directory: each is processed once, on behalf of its owner, and answered next to it.

    DIRECTORY/orders.json (or .toml)         a request; moved first, so that it cannot be replaced between two reads
    DIRECTORY/taking/ID~orders.json          being processed; resumed after a crash
    DIRECTORY/orders.json.answer.json        the result
    DIRECTORY/taken/ID~orders.json           completed
ID is the idempotency key of its request: a file that is resumed does not create a second job. Only this program may
write in `taking` and `taken`. Requests as rows of a table are taken here, too.
"""

from __future__ import annotations

import json
import os
import stat
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmroot.text import shown
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.errors import Error, NotWritable, Refused, StoreUnreachable, UsageError
from replicator.ingestion.ingestion_shown import RequestAnswer, RequestsTaken, dial
from replicator.ingestion.intake import Requester, accept, parse_request, refusal, user_of
from replicator.ingestion.job_store import IngestionStore

if TYPE_CHECKING:
    import psycopg


LARGEST = 64 * 1024
"""Maximum bytes of a request."""

LONGEST = 180
"""Maximum bytes of a file's name, leaving room for suffixes."""

KINDS = (".json", ".toml")
ANSWER = ".answer.json"


def take_directory(store: IngestionStore, ingestion: IngestionConfig, directory: Path) -> RequestsTaken:
    """Processes all requests in the directory, by name. Raises UsageError if the directory does not exist, Refused if
    another user created one of its subdirectories, and the store's errors: then the rest remains in place."""
    if not directory.is_dir():
        raise UsageError(
            f"{directory} is not a directory", hint="create it; users who may write in it may submit requests"
        )
    taking, taken = _own(directory / "taking"), _own(directory / "taken")
    report = RequestsTaken("done", str(directory), single_user=ingestion.single_user)
    for file in [*_left(taking), *_moved(directory, taking)]:
        name = file.name.partition("~")[2]
        answer = _answer(store, ingestion, file, name)
        report.requests.append(answer)
        _write(taking / f".{file.name}", directory / f"{name}{ANSWER}", answer)
        with suppress(FileNotFoundError):  # another process has completed it as well
            file.rename(taken / file.name)
    return report


def _own(directory: Path) -> Path:
    """Creates or checks a directory that only this user may write in. Raises NotWritable and Refused."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise NotWritable(f"{directory}: {error.strerror}", hint="give this user write permission") from error
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refused(f"{directory}: other users may write in it", hint="remove the directory; the next run creates it")
    return directory


def _left(taking: Path) -> list[Path]:
    """Returns files that an earlier run has not completed."""
    return sorted(file for file in taking.iterdir() if not file.name.startswith("."))


def _moved(directory: Path, taking: Path) -> Iterator[Path]:
    """Moves files that are requests, and yields each."""
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
        with suppress(FileNotFoundError):  # another process moved it first, or it was withdrawn
            yield file.rename(moved)


def _answer(store: IngestionStore, ingestion: IngestionConfig, file: Path, name: str) -> RequestAnswer:
    """Processes a request on behalf of the file's owner, and returns its result."""
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
    """Returns the content of a file, and the user id of its owner. Raises UsageError."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise UsageError("the file has other names as well", hint="write a separate file")
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", hint="give the service's user read permission") from error
    if len(data) > LARGEST:
        raise UsageError(f"is larger than {LARGEST} bytes", hint="write one request per file")
    try:
        text = data.decode()
        values = tomllib.loads(text) if file.name.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read: {error}", hint="write one JSON object, or TOML, in UTF-8") from error
    if not isinstance(values, dict):
        raise UsageError("is not a JSON object", hint="write one request per file")
    return values, found.st_uid


def _write(aside: Path, place: Path, answer: RequestAnswer) -> None:
    """Writes an answer atomically. If it cannot be written, the report and the job contain the same information."""
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


# ---- request table ---------------------------------------------------------------------------------------------------
# Requests as rows of a table in a source's database, written by its function `replicator.request_ingestion`.
#
# The function and its table are in `drop_zone.sql`. The requester is the caller as authenticated by the database; a row
# requests tables of its own database only, regardless of its content.


NEXT = """SELECT id, key::text, requested_by, groups, request::text FROM replicator.request
WHERE state = 'new' AND id > %s ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"""
ANSWERED = """UPDATE replicator.request SET state = %s, job = %s, answer = %s, answered_at = now() WHERE id = %s"""


def drop_zone_sql() -> str:
    """Returns the SQL that creates the table and the function."""
    return (Path(__file__).parent / "drop_zone.sql").read_text()


def take_table(store: IngestionStore, ingestion: IngestionConfig, source: str) -> RequestsTaken:
    """Processes all requests in a source's database, oldest first; several processes may do so concurrently. A row is
    answered in the transaction that reads it; if that is lost, its key leads to the same job. Raises UsageError for a
    source that is unknown or not PostgreSQL, StoreUnreachable if it does not respond, Error for a missing table."""
    config = ingestion.sources.get(source)
    if config is None or config.kind != "postgresql":
        known = ", ".join(name for name, each in sorted(ingestion.sources.items()) if each.kind == "postgresql")
        raise UsageError(
            f"source {source!r} is not a PostgreSQL of [ingestion.sources]", hint=f"known sources: {known}"
        )
    report, last = RequestsTaken("done", source, single_user=ingestion.single_user), 0
    with _connected(source, config) as connection:
        while True:
            with connection.transaction():
                row = connection.execute(NEXT, (last,)).fetchone()
                if row is None:
                    return report
                last, key, user, groups, values = row
                answer = RequestAnswer(str(last), user)
                said: tuple[str, int | None, str]
                try:
                    asked = parse_request({**_given(values, f"request {last}"), "source": source}, f"request {last}")
                    queued = accept(store, ingestion, asked, Requester(user, tuple(groups)), f"row:{key}")
                except Exception as error:
                    refused = refusal(error, f"source {source}, request {last}")
                    answer.error, answer.hint = refused.message, refused.hint
                    said = ("refused", None, f"{refused.message} ({refused.hint})" if refused.hint else refused.message)
                else:
                    answer.queued(queued)
                    why = f"; not checked at the source: {queued.unchecked}" if queued.unchecked else ""
                    said = ("queued", queued.job, f"position {queued.position}{why}")
                connection.execute(ANSWERED, (*said, last))
                report.requests.append(answer)


def _given(text: str, about: str) -> dict[str, Any]:
    """Returns the values without omitted ones. Raises UsageError for what JSON of PostgreSQL may hold and a request may
    not, such as a number of 100,000 digits."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{about} cannot be read: {error}", hint="write plain texts and numbers") from error
    if not isinstance(values, dict):
        raise UsageError(f"{about} is not a JSON object", hint="call replicator.request_ingestion")
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def _connected(source: str, config: SourceConfig) -> Iterator[psycopg.Connection[Any]]:
    try:
        import psycopg  # of an extra
    except ModuleNotFoundError as error:
        raise UsageError(f"source {source}: {error}", hint="pip install 'replicator[postgres]'") from error
    try:
        with dial(source, config, 10) as connection:
            yield connection
    except psycopg.errors.UndefinedTable as error:
        raise Error(
            f"source {source}: table replicator.request does not exist",
            hint="run the output of `replicator ingest drop-zone` in this database",
        ) from error
    except psycopg.OperationalError as error:
        said = str(error).strip().splitlines()[0]
        raise StoreUnreachable(f"source {source}: {said}", hint="nothing is lost; run it again") from error
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0]
        raise Error(f"source {source}: {said}", hint="GRANT replicator_taker to the source's user") from error
