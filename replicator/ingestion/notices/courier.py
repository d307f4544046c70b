"""Delivers what the outbox has, beside the work of a controller: a receiver that is down or slow holds up neither jobs
nor other receivers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from replicator.core.connections.secret import read_secret
from replicator.core.messages.kafka_topic import KafkaTopic
from replicator.core.messages.sending import PATIENCE, call, failure_of, post
from replicator.core.schedules.alert_config import WebhookConfig
from replicator.core.schedules.lineage_config import LineageConfig
from replicator.core.schedules.notify_config import CHANNELS, LINEAGE, NotifyConfig
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.notices.notice import Message, dataset_event
from replicator.ingestion.notices.outbox import Outbox
from replicator.policies.lineage.openlineage import send

log = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two looks for messages."""

LAST = 20.0
"""Seconds for which a controller that ends goes on sending."""

KEY = "Idempotency-Key"

Send = Callable[[Message], None]
"""Raises something when nobody got it."""


def senders_of(notify: NotifyConfig, lineage: LineageConfig, uri: str) -> dict[str, Send]:
    """By channel and receiver, CHANNEL.KIND.NAME. uri: of the metastore of landing tables. Raises ConfigError for a
    receiver whose library is not installed."""
    kinds: dict[str, Send] = {
        **{f"webhooks.{name}": partial(_post, name, each) for name, each in notify.webhooks.items()},
        **{f"commands.{name}": partial(_call, each.command) for name, each in notify.commands.items()},
        **{f"kafka.{name}": partial(_produce, KafkaTopic(name, each)) for name, each in notify.kafka.items()},
        LINEAGE: partial(_tell_lineage, lineage, uri),
    }
    return {f"{channel}.{name}": kinds[name] for channel in CHANNELS for name in getattr(notify, channel)}


def _post(name: str, hook: WebhookConfig, message: Message) -> None:
    secret = read_secret(hook.secret, f"ingestion.notify.webhooks.{name}.secret") if hook.secret else ""
    post(hook.url, message.body.encode(), {KEY: message.key}, secret)


def _call(command: tuple[str, ...], message: Message) -> None:
    call(command, message.body.encode())


def _produce(topic: KafkaTopic, message: Message) -> None:
    topic.send(message.key, message.body.encode())


def _tell_lineage(config: LineageConfig, uri: str, message: Message) -> None:
    send(config, dataset_event(message, uri), {KEY: message.key})


class Courier:
    """A thread for each receiver, while the block lasts, and up to `LAST` seconds more for what came in last."""

    def __init__(self, store: IngestionStore, senders: Mapping[str, Send], forget_after: float) -> None:
        """forget_after: seconds after which a receiver that nobody has configured any more is forgotten."""
        self.outbox, self._senders, self._forget_after = Outbox(store), senders, forget_after
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._deliver_all, args=(name, sender), name=f"to-{name}", daemon=True)
            for name, sender in senders.items()
        ]

    def __enter__(self) -> Self:
        if self._senders:
            self.outbox.address(list(self._senders))
        for name in self.outbox.forget(list(self._senders), self._forget_after):
            log.warning("%s is not configured any more: it is forgotten, with what it was not told", name)
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        until = time.monotonic() + LAST + 2 * PATIENCE
        for each in self._threads:
            each.join(max(0.0, until - time.monotonic()))

    def _deliver_all(self, name: str, sender: Send) -> None:
        ended = False
        while not ended:
            ended = self._over.wait(PERIOD)
            try:
                self._deliver(name, sender)
            except Exception as error:  # the store is away, say: the messages stay in it
                log.warning("%s is not told anything: %s", name, error)

    def _deliver(self, name: str, sender: Send) -> None:
        self.outbox.address([name])
        until = time.monotonic() + LAST
        while (message := self.outbox.take(name)) is not None:
            if failure := failure_of(partial(sender, message)):
                wait = self.outbox.failed(name, message, failure)
                log.warning("%s: %s was not told, tried again in %.0f s: %s", name, message.key, wait, failure)
                return
            self.outbox.delivered(name, message)
            if self._over.is_set() and time.monotonic() > until:
                return
