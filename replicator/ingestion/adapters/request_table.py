"""Requests as rows of a table in a source's database, which its function `replicator.request_ingestion` writes.

The function and its table are `drop_zone.sql`. Who may call it is who asks, as the database knows it; a row asks for
tables of its own database only, whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicator.core.connections.source_config import IngestionConfig, SourceConfig
from replicator.errors import Error, StoreUnreachable, UsageError
from replicator.ingestion.adapters.ingestion_shown import RequestAnswer, RequestsTaken
from replicator.ingestion.adapters.intake import accept, parse_request, refusal
from replicator.ingestion.adapters.source_look import dial
from replicator.ingestion.adapters.validation import Requester
from replicator.ingestion.job_store import IngestionStore

if TYPE_CHECKING:
    import psycopg

NEXT = """SELECT id, key::text, requested_by, groups, request FROM replicator.request
WHERE state = 'new' AND id > %s ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"""
ANSWERED = """UPDATE replicator.request SET state = %s, job = %s, answer = %s, answered_at = now() WHERE id = %s"""


def drop_zone_sql() -> str:
    """What makes the table and the function."""
    return (Path(__file__).parent / "drop_zone.sql").read_text()


def take_table(store: IngestionStore, ingestion: IngestionConfig, source: str) -> RequestsTaken:
    """Takes all requests of a source's database, oldest first; several may do it at the same time. A row is answered in
    the transaction that takes it; if that is lost, its key leads to the same job. Raises UsageError for a source that
    is none or no PostgreSQL, StoreUnreachable where it does not answer, Error where the table is not there."""
    config = ingestion.sources.get(source)
    if config is None or config.kind != "postgresql":
        known = ", ".join(name for name, each in sorted(ingestion.sources.items()) if each.kind == "postgresql")
        raise UsageError(f"source {source!r} is no PostgreSQL of [ingestion.sources]", hint=f"known are: {known}")
    report, last = RequestsTaken("done", source), 0
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
                    asked = parse_request({**_given(values), "source": source}, f"request {last}")
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


def _given(values: Any) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in dict(values).items() if value is not None}


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
            f"source {source}: there is no table replicator.request",
            hint="run what `replicator ingest drop-zone` prints in this database",
        ) from error
    except psycopg.OperationalError as error:
        said = str(error).strip().splitlines()[0]
        raise StoreUnreachable(f"source {source}: {said}", hint="nothing is lost; run it again") from error
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0]
        raise Error(f"source {source}: {said}", hint="GRANT replicator_taker to the source's user") from error
