"""Sends messages to a topic of Kafka, each until all in-sync replicas have it."""

from __future__ import annotations

from typing import Any

from replicator.core.connections.secret import is_reference, read_secret
from replicator.core.messages.sending import PATIENCE
from replicator.core.schedules.notify_config import KafkaConfig
from replicator.errors import ConfigError, Error


class KafkaTopic:
    """Of one receiver, for one thread at a time. name: as in the configuration. Raises ConfigError without the
    client's library."""

    def __init__(self, name: str, config: KafkaConfig) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            told = f"ingestion.notify.kafka.{name}: Kafka's client is not installed"
            raise ConfigError(told, hint="pip install replicator[kafka]") from error
        self._name, self._config, self._make = name, config, Producer
        self._producer: Any = None

    def send(self, key: str, body: bytes) -> None:
        """Raises Error when the topic does not have it in time. (It may have it all the same, later.)"""
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
            self._producer = None  # another connection, and the secrets as they are then
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
