"""Alerting: the scheduling server evaluates conditions and notifies each channel when an alert is raised, again after
`repeat`, and when it is over, but not while the condition cannot be evaluated.

Notifications are recorded in the store: neither a restart nor another server repeats them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import smtplib
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from functools import partial

import msgspec
from sqlalchemy import delete, insert, select, update

from replicator.core.connections import read_secret
from replicator.core.logging import Periodic
from replicator.core.sending import PATIENCE, call, failure_of, post
from replicator.core.service_config import AlertConfig, CommandConfig, MailConfig, WebhookConfig
from replicator.core.text import parse_duration
from replicator.errors import Error
from replicator.service.alert_conditions import (
    Condition,
    JobFacts,
    Judgement,
    Trends,
    Unjudged,
    first_wanted,
    of_comparisons,
    of_disks,
    of_jobs,
    of_policies,
)
from replicator.service.measuring import Apart, LagWatch, directories_of
from replicator.service.metrics import remembered_comparisons
from replicator.service.runs import iso
from replicator.service.scheduler import Scheduler
from replicator.service.schema import alert
from replicator.service.store import ServiceStore

# ---- alert store -----------------------------------------------------------------------------------------------------
# Alerts in the service's store: raised alerts, and the last notification of each channel.


@dataclass(frozen=True)
class OpenAlert:
    """An alert that was raised. told: channel -> its last event, and when it was sent. over: when the condition ended;
    None: it has not. Times are seconds since 1970."""

    key: str
    id: str
    kind: str
    subject: str
    text: str
    hint: str
    since: float
    over: float | None
    told: dict[str, tuple[str, float]]


def open_alerts(store: ServiceStore) -> list[OpenAlert]:
    """Returns the alerts that are not over, or whose end was not sent to all channels, oldest first."""
    with store.transaction() as connection:
        rows = connection.execute(select(alert).order_by(alert.c.since, alert.c.key)).mappings().all()
    return [
        OpenAlert(**{**row, "told": {name: (each[0], each[1]) for name, each in json.loads(row["told"]).items()}})
        for row in rows
    ]


def record(store: ServiceStore, key: str, kind: str, subject: str, said: tuple[str, str], now: float) -> None:
    """Raises an alert, or updates the existing one and reopens it. said: its text and hint. May run twice."""
    text, hint = said
    with store.transaction() as connection:
        there = update(alert).where(alert.c.key == key).values(over=None, text=text, hint=hint)
        if not connection.execute(there).rowcount:
            values = {"id": uuid.uuid4().hex, "kind": kind, "subject": subject, "text": text, "hint": hint}
            connection.execute(insert(alert).values(key=key, since=now, over=None, told="{}", **values))


def finish(store: ServiceStore, key: str, now: float) -> None:
    """Marks an alert as over. May run twice; the first timestamp is retained."""
    with store.transaction() as connection:
        connection.execute(update(alert).where(alert.c.key == key, alert.c.over.is_(None)).values(over=now))


def remember(store: ServiceStore, key: str, told: Mapping[str, tuple[str, float]]) -> None:
    """Records the last notification of each channel."""
    with store.transaction() as connection:
        connection.execute(update(alert).where(alert.c.key == key).values(told=json.dumps(dict(told))))


def forget(store: ServiceStore, key: str) -> None:
    """Deletes an alert that is over, once all channels were notified. May run twice."""
    with store.transaction() as connection:
        connection.execute(delete(alert).where(alert.c.key == key, alert.c.over.is_not(None)))


# ---- channels --------------------------------------------------------------------------------------------------------
# Notification channels: webhooks, commands, mails.


class Message(msgspec.Struct, frozen=True):
    """A notification. event: "raised", "still" or "over". id: the same for all messages of one alert, and for a message
    that is sent again. Times are ISO 8601."""

    event: str
    id: str
    kind: str
    subject: str
    text: str
    hint: str
    since: str
    at: str


Send = Callable[[Message], None]
"""Delivers a message. Raises an exception if it was not delivered."""


def channels_of(config: AlertConfig) -> Mapping[str, Send]:
    """Returns the channels by the names under which deliveries are recorded."""
    return {
        **{f"webhooks.{name}": partial(_post, name, each) for name, each in config.webhooks.items()},
        **{f"commands.{name}": partial(_call, each) for name, each in config.commands.items()},
        **{f"mails.{name}": partial(_mail, name, each) for name, each in config.mails.items()},
    }


def _post(name: str, hook: WebhookConfig, message: Message) -> None:
    secret = read_secret(hook.secret, f"alerts.webhooks.{name}.secret") if hook.secret else ""
    post(hook.url, msgspec.json.encode(message), secret=secret)


def _call(given: CommandConfig, message: Message) -> None:
    call(given.command, msgspec.json.encode(message))


def _mail(name: str, mail: MailConfig, message: Message) -> None:
    letter = EmailMessage()
    letter["From"], letter["To"] = mail.sender, ", ".join(mail.to)
    letter["Subject"] = f"[replicator] {message.event}: {message.kind} {message.subject}"
    letter["Message-ID"] = f"<{message.id}.{message.event}.{hash_of(message.at)}@replicator>"
    letter.set_content(f"{message.text}\n\n{message.hint}\n\nsince {message.since}, at {message.at}\n")
    host, _, port = mail.server.rpartition(":")
    with _mail_server(host.strip("[]"), int(port), mail.tls) as server:
        if mail.user and mail.password:
            server.login(mail.user, read_secret(mail.password, f"alerts.mails.{name}.password"))
        server.send_message(letter)


def _mail_server(host: str, port: int, tls: str) -> smtplib.SMTP:
    """Connects to a mail server. With TLS, its certificate must be trusted by this system or by SSL_CERT_FILE."""
    if tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=PATIENCE, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=PATIENCE)
    if tls == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def hash_of(text: str) -> str:
    """Returns the first eight hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# ---- alerting --------------------------------------------------------------------------------------------------------


SENDING = 16  # concurrent messages; one that takes too long no longer counts
PERIOD = 5.0  # seconds between evaluations
FIRST, LONGEST = 10.0, 300.0  # seconds before a failed channel is retried: doubled each time

AWAY_FOR = 30.0  # seconds without a store before channels are notified

log = logging.getLogger(__name__)
repeated = Periodic(log, every=600.0)


@dataclass
class Alerter:
    """The alerting of a server; `step` evaluates all conditions and notifies channels once. clock: of messages about
    the store."""

    store: ServiceStore
    scheduler: Scheduler
    watch: LagWatch
    clock: Callable[[], float] = time.time
    _away: tuple[float, str, dict[str, float]] | None = None
    _first_seen: dict[str, float] = field(default_factory=dict)
    _trends: Trends = field(default_factory=dict)
    _sending: Apart = field(default_factory=lambda: Apart(SENDING, 2 * PATIENCE))
    _next_try: dict[str, tuple[float, float]] = field(default_factory=dict)
    _refused: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Runs until the scheduler stops."""
        stopping: threading.Event = self.scheduler.stopping
        while not stopping.wait(PERIOD):
            try:
                if self.scheduler.health.leads:
                    self.turn()
            except Exception:  # continues, as the scheduler does
                log.exception("alerts: internal error")

    def turn(self) -> None:
        """Runs a step, or if the store prevents it, notifies channels about the store."""
        try:
            self.step()
        except Error as error:
            repeated.warning("alerts: %s", error.message)
            self._tell_of_store(error)
        else:
            self._tell_of_store(None)

    def step(self) -> None:
        """Evaluates all conditions and notifies channels. Raises StoreUnreachable."""
        now = self.store.now()
        judged = list(self._judged(now))
        unjudged = [each for each in judged if isinstance(each, Unjudged)]
        there = {each.key: each for each in judged if isinstance(each, Condition)}
        known = {each.key: each for each in open_alerts(self.store)}
        for each in self._lasting(there, unjudged, now):
            if each.eases and (each.key not in known or known[each.key].over is not None):
                continue
            record(self.store, each.key, each.kind, each.subject, (each.text, each.hint), now)
        for raised in known.values():
            if raised.key not in there and not _covered(unjudged, raised.kind, raised.subject):
                finish(self.store, raised.key, now)
        told = open_alerts(self.store)
        self._refused = {each.id: self._refused.get(each.id, 0.0) for each in told}
        for raised in sorted(told, key=lambda each: self._refused[each.id]):
            self._tell(raised, now)

    def _judged(self, now: float) -> Iterable[Judgement]:
        config = self.scheduler.config
        compared = {**remembered_comparisons(self.store), **self.watch.compared}
        verified = {name for name, policy in config.policies.items() if policy.verify is not None}
        states, successes, queued = self.store.jobs(), self.store.successes(), self.store.first_runs()
        facts = [
            JobFacts(
                job,
                states.get(name),
                self.store.runs(job_name=name, states=ENDED, limit=config.alerts.failed_in_a_row),
                successes.get(name, first_wanted(states.get(name), queued.get(name), now)),
                job.syncs and job.policy in verified,
            )
            for name, job in self.scheduler.jobs.items()
        ]
        yield from of_jobs(facts, config.alerts, now)
        yield from of_policies(config.policies, self.watch.found, self._trends, config.alerts)
        yield from of_comparisons(sorted(verified), compared, config.alerts, now)
        yield from of_disks(directories_of(config), self.watch.disks, self._trends, config.alerts)

    def _lasting(self, there: Mapping[str, Condition], unjudged: Sequence[Unjudged], now: float) -> list[Condition]:
        """Returns the conditions that last for long enough; time in which they cannot be evaluated counts, too."""
        waiting = {
            key: since for key, since in self._first_seen.items() if _covered(unjudged, *key.split(":", maxsplit=1))
        }
        self._first_seen = waiting | {key: self._first_seen.get(key, now) for key in there}
        return [each for key, each in there.items() if now - self._first_seen[key] >= each.hold]

    def _tell(self, each: OpenAlert, now: float) -> None:
        config = self.scheduler.config.alerts
        channels, told = channels_of(config), dict(each.told)
        repeat = parse_duration(config.repeat).total_seconds()
        for name, send in channels.items():
            event = _event(each, told.get(name), now, repeat)
            if not event or time.monotonic() < self._next_try.get(name, (0.0, 0.0))[0]:
                continue
            message = Message(
                event, each.id, each.kind, each.subject, each.text, each.hint, iso(each.since) or "", iso(now) or ""
            )
            failure = self._failure(name, send, message)
            if failure:
                wait = min(self._next_try.get(name, (0.0, FIRST / 2))[1] * 2, LONGEST)
                self._next_try[name] = (time.monotonic() + wait, wait)
                self._refused[each.id] = time.monotonic()  # it is sent last then: the alert itself may be refused
                log.warning("alerts.%s: delivery failed, retry in %.0f s: %s", name, wait, failure)
                continue
            self._next_try.pop(name, None)
            told[name] = (event, now)
            remember(self.store, each.key, told)  # now, as the next channel may take long
        waits = any(told.get(name, ("over",))[0] != "over" for name in channels)
        if each.over is not None and not waits:
            forget(self.store, each.key)

    def _tell_of_store(self, error: Error | None) -> None:
        """Sends what cannot be recorded: that the store does not work, for longer than `AWAY_FOR`, and its end. A
        restarted server sends it again."""
        now = self.clock()
        if error is None and self._away is None:
            return
        since, id, told = self._away = self._away or (now, uuid.uuid4().hex, {})
        config = self.scheduler.config.alerts
        repeat = parse_duration(config.repeat).total_seconds()
        for name, send in channels_of(config).items():
            if error is None:
                event = "over" if name in told else ""
            elif now - since < AWAY_FOR or now - told.get(name, -math.inf) < repeat:
                event = ""
            else:
                event = "still" if name in told else "raised"
            text, hint = (error.message, error.hint or "") if error else ("the store works again", "")
            message = Message(event, id, "store", "service", text, hint, iso(since) or "", iso(now) or "")
            if event and not (failure := self._failure(name, send, message)):
                told[name] = now
            elif event:
                repeated.warning("alerts: delivery failed: %s", failure)
        if error is None:
            self._away = None

    def _failure(self, channel: str, send: Send, message: Message) -> str:
        """Sends a message. Returns why it was not delivered; empty: it was. A slow receiver delays only its own
        messages."""
        said: list[str] = []
        if not self._sending.begin(channel, lambda: said.append(failure_of(lambda: send(message)))):
            return "the previous message is still being sent"
        if not self._sending.wait(channel, 2 * PATIENCE) or not said:
            return f"it took longer than {2 * PATIENCE:.0f} s"
        return said[0]


ENDED = ("done", "partial", "differs", "failed", "lost")


def _event(each: OpenAlert, told: tuple[str, float] | None, now: float, repeat: float) -> str:
    """Returns the event to send to a channel now; "" for none. A channel that was never notified of an alert is not
    notified of its end."""
    if each.over is not None:
        return "over" if told and told[0] != "over" else ""
    if told is None or told[0] == "over":
        return "raised"
    return "still" if now - told[1] >= repeat else ""


def _covered(unjudged: Iterable[Unjudged], kind: str, subject: str) -> bool:
    return any(each.covers(kind, subject) for each in unjudged)
