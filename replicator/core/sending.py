"""Delivery of one message to a webhook or to a command. The caller defines its contents and the retries."""

from __future__ import annotations

import hashlib
import hmac
import logging
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from replicator.core.connections import is_reference, read_secret
from replicator.core.service_config import KafkaConfig
from replicator.errors import ConfigError, Error

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for one message
SIGNATURE = "X-Replicator-Signature"


class _Still(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirects: a redirected POST would arrive as a GET without its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_Still)


def failure_of(send: Callable[[], object]) -> str:
    """Returns why sending failed; empty on success. An error of one receiver does not affect the others."""
    try:
        send()
    except (OSError, Error, ValueError, HTTPException) as error:
        return str(error) or type(error).__name__
    except Exception as error:
        log.exception("internal error")
        return f"internal error: {type(error).__name__}: {error}"
    return ""


def signature(secret: str, moment: int, body: bytes) -> str:
    """Returns the header of a signed message: its timestamp, and the HMAC-SHA256 of `<time>.<body>`."""
    made = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={made}"


def post(
    url: str, body: bytes, headers: Mapping[str, str] | None = None, secret: str = "", patience: float = PATIENCE
) -> None:
    """Sends JSON; secret: signs it. Raises OSError or HTTPException unless the response is a success."""
    given = {"Content-Type": "application/json", **(headers or {})}
    if secret:
        given[SIGNATURE] = signature(secret, int(time.time()), body)
    request = urllib.request.Request(url, body, given, method="POST")
    with _opener.open(request, timeout=patience) as answer:
        answer.read(1)


def call(command: Sequence[str], body: bytes) -> None:
    """Sends a line to a program, without a shell. Raises OSError if it cannot be run, ValueError if it fails."""
    program, nobody = command[0], subprocess.DEVNULL
    try:
        done = subprocess.run(command, input=body + b"\n", stdout=nobody, stderr=nobody, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{program} took longer than {PATIENCE:.0f} s") from None
    if done.returncode:
        raise ValueError(f"{program} ended with exit code {done.returncode}")


# ---- kafka topic -----------------------------------------------------------------------------------------------------
# Sends messages to a topic of Kafka, and waits until all in-sync replicas have each.


class KafkaTopic:
    """A producer for one receiver, for one thread at a time. name: as in the configuration. Raises ConfigError if the
    client's library is not installed."""

    def __init__(self, name: str, config: KafkaConfig) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            told = f"ingestion.notify.kafka.{name}: Kafka's client is not installed"
            raise ConfigError(told, hint="pip install replicator[kafka]") from error
        self._name, self._config, self._make = name, config, Producer
        self._producer: Any = None

    def send(self, key: str, body: bytes) -> None:
        """Sends one message. Raises Error if the topic does not acknowledge it in time. (It may still arrive later.)"""
        failures: list[str] = []
        producer = self._producer = self._producer or self._make(self._settings())
        producer.produce(
            self._config.topic,
            body,
            key.encode(),
            on_delivery=lambda error, _: failures.append(str(error)) if error else failures.append(""),
        )
        producer.flush(PATIENCE + 1)
        if failures != [""]:
            producer.purge()
            self._producer = None  # the next call opens a new connection and reads the secrets again
            raise Error(f"topic {self._config.topic}: {failures[0] if failures else 'no broker answers'}")

    def _settings(self) -> dict[str, str | int | bool]:
        key = f"ingestion.notify.kafka.{self._name}.settings"
        given = {
            name: read_secret(value, f"{key}.{name}") if is_reference(value) else value
            for name, value in self._config.settings.items()
        }
        ours: dict[str, str | int | bool] = {
            "bootstrap.servers": self._config.servers,
            "acks": "all",
            "enable.idempotence": True,
        }
        return {"message.timeout.ms": int(PATIENCE * 1000), "log_level": 0, **given, **ours}
