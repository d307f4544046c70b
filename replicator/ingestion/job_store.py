"""The ingestion store: assets, jobs, and each change of a job. It is shared by any number of controllers.

Each change of a job first updates the only row of `schema.turn`. This serialises changes: no change becomes visible
before an earlier one. Read-only queries are in `job_answers`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, and_, bindparam, insert, or_, select, update

from cmroot.text import shown
from replicator.core.text import without_credentials
from replicator.errors import Fenced, Refused
from replicator.ingestion import job_queries as queries
from replicator.ingestion import schema as rows
from replicator.ingestion.ingestion_request import (
    COUNTED,
    WAITING,
    Asset,
    Claimed,
    Failure,
    IngestionJob,
    JobChange,
    JobFilter,
    Request,
    Submitted,
    delay,
    following,
    is_same_person,
)
from replicator.ingestion.job_answers import JobAnswers
from replicator.ingestion.job_queries import pick
from replicator.ingestion.schema import REVISIONS, asset, change, job, turn

R = TypeVar("R")

REVISION = "0003"
"""The newest migration that this release knows."""

LOST = 1
"""Controllers that a job may lose in a row before it has to wait as after a failure: the job may be what kills them."""

TEXT, DETAIL = 1000, 100_000
"""Maximum numbers of characters of an error's text and detail that are stored."""

ONE = update(job).where(job.c.id == bindparam("this"))
"""An update with bound parameters, which is faster than one with inlined values."""

ALL = JobFilter()
NO_ERROR = {"error_kind": "", "error_text": "", "error_detail": ""}


class IngestionStore(JobAnswers):
    """Assets and jobs, with all operations that change them. Raises as Database."""

    def __init__(
        self, url: str, clock: Callable[[], float] = time.time, chance: Callable[[], float] = random.random
    ) -> None:
        """url, clock: see `JobAnswers`. chance: returns a random number from 0 to 1."""
        super().__init__(url, clock)
        self._chance = chance

    def prepare(self) -> None:
        """Creates or migrates the tables. May run twice."""
        if self.revision(REVISIONS, REVISION) != REVISION:
            self.migrate(Path(__file__).parent / "migrations", REVISIONS)

    # ---- assets ---------------------------------------------------------------------------------------------------

    def put_asset(self, given: Asset, *, overwrite: bool = True) -> Asset:
        """Stores an asset, and returns it as stored. A changed asset has to be approved again; an equal one is left
        unchanged. overwrite: if False, raises Refused where a different asset of this name exists."""
        definition = rows.definition_of(given)
        with self._turn() as connection:
            row = connection.execute(select(asset).where(asset.c.name == given.name)).mappings().first()
            if row is not None and row["definition"] == definition:
                return rows.to_asset(dict(row))
            if row is not None and not overwrite:
                raise Refused(f"asset {given.name} already exists with other values", hint="--overwrite changes it")
            made: dict[str, Any] = {"created_by": given.created_by, "approved_by": "", "changed": self._now(connection)}
            values = {"definition": definition, **made}
            if row is None:
                connection.execute(insert(asset).values(name=given.name, **values))
            else:
                connection.execute(update(asset).where(asset.c.name == given.name).values(**values))
        return msgspec.structs.replace(given, approved_by="")

    def approve_asset(self, name: str, by: str, digest: str = "", *, own: bool = False) -> Asset:
        """Approves an asset: requests for it are accepted, and its jobs that waited for that are due now. May run
        twice; the first approver is retained, unless only single-user mode accepted it. digest: of the definition to
        approve; empty: the current one. own: single-user mode: users may approve what they created. Raises
        ObjectNotFound, and Refused for the user who created or changed the asset, and if the definition has another
        digest."""
        with self._turn() as connection:
            found = queries.find_asset(connection, name)
            if digest and digest != rows.digest_of(found):
                told = f"asset {name} was changed since it was inspected"
                raise Refused(told, hint="inspect it again, and approve its current definition")
            if found.approved_by and (own or not is_same_person(found.created_by, found.approved_by)):
                return found
            if is_same_person(found.created_by, by) and not own:
                hint = "another user must approve it; to try it alone, set [ingestion] single_user = true"
                raise Refused(f"asset {name} was defined by {by}", hint=hint)
            connection.execute(update(asset).where(asset.c.name == name).values(approved_by=by))
            waits = (queries.IS_OPEN, job.c.asset == name, job.c.error_kind == "lock")
            connection.execute(update(job).where(*waits).values(due=self._now(connection)))
        return msgspec.structs.replace(found, approved_by=by)

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request, *, key: str | None = None) -> Submitted:
        """Queues a job, replacing one of the same identity that waits or has failed; if one is running, or may have
        dropped its table, the new job follows it, and the former one is due at once. key: idempotency key of a request
        that may be sent again: it creates one job. Raises ObjectNotFound for an unknown asset, Refused if another
        source lands in the same table; all other checks are the caller's."""
        target, identity = ".".join(request.target), rows.digest(request.identity)
        with self._turn() as connection:
            if key and (known := self.submitted(key)):
                return known
            approver = queries.find_asset(connection, request.asset).approved_by
            if another := queries.taken_by_another(connection, target, identity):
                raise Refused(
                    f"{request.place}: {another} already lands in {target}",
                    hint="create a view with another name in the source, or cancel the other table's jobs",
                )
            now = self._now(connection)
            former = queries.find_by(connection, job.c.slot == f"{identity}:waiting")
            if former and rows.may_have_dropped(former):
                self._change(connection, former, request.requested_by, state="running")
                former = None
            elif former:
                self._change(connection, former, request.requested_by, state="superseded", ended=now)
            resumes = (job.c.slot == f"{identity}:running", job.c.holder == "")
            connection.execute(update(job).where(*resumes).values(due=now))  # a request waits for no delay of a failure
            made = {
                **rows.new_row(request, target, identity),
                "approver": approver,
                "request_key": key or None,
                "queued": now,
                **rows.place_of(former, now),
            }
            id = int(connection.execute(insert(job), made).inserted_primary_key[0])  # type: ignore[index]
            made |= {"id": id, "place": made["place"] or id}
            self._change(connection, made, request.requested_by, place=made["place"])
            ahead = queries.position(connection, made["place"])
            return Submitted(id, "queued", ahead, former["id"] if former else None)

    def submitted(self, key: str) -> Submitted | None:
        """Returns the job of the request with this key, if any."""
        with self.transaction() as connection:
            known = queries.find_by(connection, job.c.request_key == key)
            if known is None:
                return None
            waits = known["state"] in ("queued", "failed")
            return Submitted(known["id"], known["state"], queries.position(connection, known["place"]) if waits else 0)

    def cancel(self, id: int, by: str) -> IngestionJob:
        """Cancels a job: a waiting one at once, a running one at the next call of its holder. A job that may be
        published already is cancelled after a holder has checked that it was not. May run twice. Raises ObjectNotFound,
        and Refused for a job that has ended or is published."""
        with self._turn() as connection:
            row, now = queries.find_row(connection, id), self._now(connection)
            noted, looks = {"cancelled_by": row["cancelled_by"] or by}, row["step"] == "publish"
            if row["state"] in WAITING and looks:
                self._change(connection, row, by, **noted, state="running", due=now)
            elif row["state"] in WAITING or (row["state"] == "running" and row["lease"] <= now and not looks):
                self._change(connection, row, by, **noted, **rows.ended("cancelled", now))
            elif row["state"] == "running":
                connection.execute(update(job).where(job.c.id == id).values(**noted))
            elif row["state"] != "cancelled":
                raise Refused(f"job {id} is {row['state']}", hint="only waiting and running jobs can be cancelled")
        return self.job(id)

    def expire(self, duration: timedelta, attempts: int) -> list[int]:
        """Expires jobs that have been failing for `duration`, or that failed `attempts` times not counting locks,
        unless they are published or may have dropped their table. Returns their ids."""
        with self._turn() as connection:
            now = self._now(connection)
            long = job.c.failing_since <= now - duration.total_seconds()
            often = and_(job.c.state == "failed", job.c.attempt - job.c.uncounted >= attempts)
            failed = job.c.state.in_(("failed", "failed_user", "failed_type"))
            some = connection.execute(select(job).where(failed, or_(long, often))).mappings().all()
            found = [row for row in map(dict[str, Any], some) if not rows.may_have_dropped(row)]
            for row in found:
                error = {name: row[name] for name in NO_ERROR}
                self._change(connection, row, "", **rows.ended("expired", now), **error)
        return [int(row["id"]) for row in found]

    def set_mark(self, id: int, facts: Mapping[str, Any], by: str, why: str, write: Callable[[], None]) -> None:
        """Sets the watermark of the newest published job of a table: first by `write`, in the metastore, then by these
        facts of the job; and records a change `marked` with its author and reason. Until then no job is claimed
        or begins to publish. May run twice. Raises ObjectNotFound, and Refused while a job of the table runs, or if a
        later one may have published: its rows and this watermark would not fit each other."""
        with self._turn() as connection:
            row = queries.find_row(connection, id)
            if other := queries.changes_table(connection, row["target"], id):
                hint = "set it when that job has ended, or land the table again first"
                raise Refused(f"job {other} is landing {row['target']}, or may have published it", hint=hint)
            write()
            after = {**row, "facts": rows.merged(row, facts), "state": "marked"}
            connection.execute(ONE, {"this": id, "facts": after["facts"]})
            self._log(connection, after, by, error_text=_kept(why, TEXT))

    # ---- controllers ----------------------------------------------------------------------------------------------

    def claim(self, holder: str, lease: float, slots: int, share: float) -> Claimed | None:
        """Claims the next job, for `lease` seconds; None: no job, or no slot. A job whose holder's lease has expired
        resumes at the same step; one that loses its holders repeatedly waits as after a failure."""
        with self._turn() as connection:
            now = self._now(connection)
            while chosen := pick(queries.candidates(connection, now), queries.at_work(connection), slots, share):
                row = queries.find_row(connection, chosen.job)
                free = update(job).where(job.c.id == chosen.job, job.c.fence == row["fence"], job.c.lease <= now)
                if not connection.execute(free.values(lease=0.0)).rowcount:
                    continue  # its holder has renewed it concurrently
                if rows.ends_cancelled(row):
                    self._cancel(connection, row)
                elif chosen.held and row["failures"] >= LOST and not queries.is_in_doubt(connection, row):
                    lost = Failure(
                        "component", f"{row['failures'] + 1} controllers stopped responding while they held this job"
                    )
                    self._fail(connection, row, lost, now)
                else:
                    return self._begin(connection, row, holder, lease, now)
        return None

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Extends the lease to `lease` seconds from now. Raises Fenced if the job has another holder or was
        cancelled."""
        with self.writing() as connection:
            mine = (job.c.id == claimed.job, job.c.fence == claimed.fence, job.c.holder == claimed.holder)
            until = self._now(connection) + lease
            stays = or_(job.c.cancelled_by == "", job.c.step == "publish")
            kept = update(job).where(*mine, stays).values(lease=until)
            if connection.execute(kept).rowcount:
                return
        self._hold(claimed, lambda *_: None)

    def step_done(self, claimed: Claimed, step: str, facts: Mapping[str, Any]) -> None:
        """Records the completion of `step` with its facts, and advances to the next step. Raises Fenced."""

        def act(connection: Connection, row: Mapping[str, Any]) -> None:
            found = rows.merged(row, facts)
            done = {"step": following(step), "facts": found, "failures": 0, **NO_ERROR}
            self._change(connection, row, claimed.holder, **done)

        self._hold(claimed, act)

    def published(self, claimed: Claimed, event_id: int | None, facts: Mapping[str, Any]) -> None:
        """Records the publication: from now on the job is neither cancelled nor expired, and requests of its identity
        may run while it waits for a retry. Raises Fenced."""

        def act(connection: Connection, row: Mapping[str, Any]) -> None:
            done = {"step": following("publish"), "facts": rows.merged(row, facts), "failures": 0, **NO_ERROR}
            values = {"state": "published", "event_id": event_id, "cancelled_by": ""}
            self._change(connection, row, claimed.holder, **done, **values)

        self._hold(claimed, act)

    def unpublished(self, claimed: Claimed) -> None:
        """Ends a cancelled job that turned out not to be published. Raises Fenced."""
        self._hold(claimed, self._cancel)

    def done(self, claimed: Claimed) -> None:
        """Ends a job that has completed all steps. Raises Fenced."""

        def act(connection: Connection, row: Mapping[str, Any]) -> None:
            end = rows.ended("done", self._now(connection))
            self._change(connection, row, claimed.holder, **end, step="", **NO_ERROR)

        self._hold(claimed, act)

    def release(self, claimed: Claimed) -> None:
        """Releases a job that has not failed: it resumes at its step with the next claim. Raises Fenced."""

        def act(connection: Connection, row: Mapping[str, Any]) -> None:
            free = {"this": row["id"], "holder": "", "lease": 0.0, "due": self._now(connection)}
            connection.execute(ONE, free)

        self._hold(claimed, act)

    def fail(self, claimed: Claimed, failure: Failure) -> None:
        """Releases a failed job; the kind of failure determines the next attempt. A published job is always retried.
        Raises Fenced."""
        self._hold(claimed, lambda connection, row: self._fail(connection, row, failure, self._now(connection)))

    # ---- the log's table ------------------------------------------------------------------------------------------

    def begin_logging(self, limit: int) -> list[JobChange]:
        """Returns changes that are not in the log's table yet, oldest first: the same batch, also to another
        controller, until `end_logging` confirms it."""
        with self._turn() as connection:
            logged, until = connection.execute(select(turn.c.logged, turn.c.logging)).one()
            if until > logged:
                batch = queries.find_changes(connection, logged, until - logged)
                return [each for each in batch if each.id <= until]
            found = queries.find_changes(connection, logged, limit)
            if found:
                connection.execute(update(turn).values(logging=found[-1].id))
            return found

    def end_logging(self, last: int) -> None:
        """Records that the log's table contains the batch up to the change `last`. May run twice."""
        with self._turn() as connection:
            connection.execute(update(turn).where(turn.c.logged < last).values(logged=last))

    @contextmanager
    def _turn(self) -> Iterator[Connection]:
        """A transaction that is serialised with all others of its kind."""
        with self.writing() as connection:
            connection.execute(update(turn).values(fence=turn.c.fence))
            yield connection

    def _hold(self, claimed: Claimed, act: Callable[[Connection, Mapping[str, Any]], object]) -> None:
        """Runs an action on a job that the claimant still holds. Raises Fenced, after ending a cancelled job."""
        with self._turn() as connection:
            row = queries.find_row(connection, claimed.job)
            if row["fence"] != claimed.fence or row["holder"] != claimed.holder:
                by = f"it is held by {row['holder']}" if row["holder"] else f"it is {row['state']}"
                raise Fenced(f"job {claimed.job}, attempt {claimed.attempt}: {by} now", hint="no action is required")
            if not rows.ends_cancelled(row):
                act(connection, row)
                return
            self._cancel(connection, row)
        raise Fenced(f"job {claimed.job} was cancelled by {row['cancelled_by']}", hint="no action is required")

    def _cancel(self, connection: Connection, row: Mapping[str, Any]) -> None:
        self._change(connection, row, row["cancelled_by"], **rows.ended("cancelled", self._now(connection)))

    def _begin(self, connection: Connection, row: Mapping[str, Any], holder: str, lease: float, now: float) -> Claimed:
        connection.execute(update(turn).values(fence=turn.c.fence + 1))
        fence = int(connection.execute(select(turn.c.fence)).scalar_one())
        lost = {"failures": row["failures"] + 1, "failing_since": row["failing_since"] or now} if row["holder"] else {}
        values = {
            "state": "published" if row["state"] == "published" else "running",
            "holder": holder,
            "lease": now + lease,
            "fence": fence,
            "attempt": row["attempt"] + 1,
            "approver": queries.find_asset(connection, row["asset"]).approved_by,
            "begun": row["begun"] or now,
        }
        self._change(connection, row, holder, **values, **lost)
        request = msgspec.json.decode(row["request"], type=Request)
        facts = msgspec.json.decode(row["facts"])
        cancelled = bool(row["cancelled_by"])
        return Claimed(row["id"], values["attempt"], fence, holder, request, row["step"], facts, cancelled)

    def _fail(self, connection: Connection, row: Mapping[str, Any], failure: Failure, now: float) -> None:
        failures = row["failures"] + (failure.kind != "lock")
        values = {
            "holder": "",
            "lease": 0.0,
            "failures": failures,
            "uncounted": row["uncounted"] + (failure.kind == "lock"),
            "failing_since": row["failing_since"] or now,
            "due": now + delay(failure.kind, failures, self._chance()),
            "error_kind": failure.kind,
            "error_text": _kept(failure.text, TEXT),
            "error_detail": _kept(failure.detail, DETAIL),
        }
        waits = select(job.c.id).where(job.c.slot == f"{row['identity']}:waiting")
        if row["state"] != "published":
            over = failure.kind in ("user", "type") and not row["cancelled_by"]  # else the next holder checks
            values["state"] = f"failed_{failure.kind}" if over else "failed"
            waiting = connection.execute(waits).scalar()
            if waiting and rows.may_have_dropped({**row, **values}):
                values["state"] = "running"  # it keeps its slot, and resumes when it is due
            elif waiting:
                if values["state"] == "failed":
                    connection.execute(ONE, {"this": waiting, "waits_since": rows.waits_since(row)})
                values |= {"state": "superseded", "ended": now}
        self._change(connection, row, row["holder"], **values)

    def _change(self, connection: Connection, before: Mapping[str, Any], actor: str, **values: Any) -> None:
        """Writes a job's new values, and a row of the log. before: the job's current row."""
        after = {**before, **values}
        connection.execute(ONE, {"this": after["id"], **values, "slot": rows.slot_of(after)})
        self._log(connection, after, actor, **{name: values.get(name, "") for name in ("error_kind", "error_text")})

    def _log(
        self, connection: Connection, after: Mapping[str, Any], actor: str, error_kind: str = "", error_text: str = ""
    ) -> None:
        """Writes a row of the log. after: the job's row."""
        error = {"error_kind": error_kind, "error_text": error_text}
        facts = msgspec.json.decode(after["facts"])
        same = ("attempt", "asset", "source", "target", "requester", "approver", "mode", "state", "step", "event_id")
        row = {name: after[name] for name in same} | {name: facts.get(name) for name in COUNTED} | error
        row |= {"job": after["id"], "actor": actor, "at": self._now(connection)}
        connection.execute(insert(change), row)


def _kept(text: str, most: int) -> str:
    """Returns the text without credentials and without NUL, which PostgreSQL cannot store."""
    return without_credentials(shown(text)).replace("\0", "")[:most]
