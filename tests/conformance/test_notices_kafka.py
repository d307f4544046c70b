"""A topic of a real Kafka as a receiver of what ingestion did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ingestion_stores import clock, courier, land, opened
from kafka_broker import kafka_broker
from waiting import CEILING, Clock

from replicator.core.config import parse_config
from replicator.errors import ConfigError
from replicator.ingestion.notices import SENDING, Outbox, Send, senders_of

__all__ = ["clock"]

NAME = "publications.kafka.landed"


def senders(servers: str, **more: Any) -> dict[str, Send]:
    kafka = {"landed": {"servers": servers, "topic": "landed.tables", **more}}
    config = parse_config({"ingestion": {"notify": {"publications": ["kafka.landed"], "kafka": kafka}}}, "test")
    return senders_of(config.ingestion.notify, config.lineage, "thrift://hms:9083")


def test_a_topic_has_each_message_at_least_once_with_one_key(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.core.sending.PATIENCE", 2.0)
    with kafka_broker(tmp_path) as broker, opened(f"sqlite:///{tmp_path}/i.sqlite", clock) as store:
        slow = {"topic.metadata.propagation.max.ms": str(1000 * int(CEILING))}  # a new broker on a busy machine
        to, outbox = senders(broker.servers, settings=slow), Outbox(store)
        with courier(store, to):
            job = land(store, [["id", "int"]])
        (waiting,) = outbox.undelivered(job)
        assert waiting.receiver == NAME and waiting.tries == 1 and "landed.tables" in waiting.error
        broker.start()
        monkeypatch.setattr("replicator.core.sending.PATIENCE", CEILING)
        clock.now += 3600
        found = outbox.take(NAME)
        assert found is not None
        to[NAME](found)  # and killed before it could say that it had told
        clock.now += SENDING
        with courier(store, to):
            pass
        assert outbox.undelivered() == []
        first, second = broker.messages("landed.tables")
        assert first == second and first[0] == f"{job}-1-done"
        told = json.loads(first[1])
        assert (told["target"], told["rows"], told["state"]) == ("crm_public.orders", 3, "done")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"servers": "kafka"}, "servers: 'kafka' is not a server"),
        ({"topic": "a b"}, "topic: 'a b' is not a topic name"),
        ({"settings": {"sasl.password": "x"}}, "settings.sasl.password: is not a reference to a secret"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        senders(wrong.pop("servers", "127.0.0.1:9"), **wrong)
