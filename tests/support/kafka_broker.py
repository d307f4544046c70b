"""A Kafka of one broker, which is its own controller, out of Kafka's jars."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from fetched_jars import fetched_jars
from waiting import CEILING, eventually

from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import find_java

VERSION = "3.9.1"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
num.partitions=1
"""


def jars() -> Path:
    return fetched_jars(f"kafka/{VERSION}", "kafka_jars.txt")


class KafkaBroker:
    """servers: as a client is given them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._ports = directory, (free_port(), free_port())
        self.servers = f"127.0.0.1:{self._ports[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Waits until it answers."""
        properties = self.directory / "server.properties"
        broker, controller = self._ports
        properties.write_text(PROPERTIES.format(broker=broker, controller=controller, directory=self.directory))
        java = [str(find_java(os.environ).executable), "-Xmx256m", "-cp", f"{jars()}/*"]
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
        subprocess.run(tool, check=True, capture_output=True)
        log = self.directory / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=out, stderr=out)
        consumer = self._consumer()

        def answers() -> bool:
            assert self._process is not None and self._process.poll() is None, log.read_text()
            with suppress(KafkaException):
                consumer.list_topics(timeout=CEILING)
                return True
            return False

        eventually(answers, log.read_text)
        consumer.close()

    def messages(self, topic: str) -> list[tuple[str, bytes]]:
        """All of the topic's one partition: keys and values."""
        consumer = self._consumer()
        part = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(part, timeout=CEILING)
        consumer.assign([part])
        found: list[tuple[str, bytes]] = []
        while len(found) < end:
            message = consumer.poll(CEILING)
            assert message is not None and not message.error(), message
            found.append((message.key().decode(), message.value()))
        consumer.close()
        return found

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.servers, "group.id": "tests", "log_level": 0})

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Not started yet."""
    broker = KafkaBroker(directory)
    try:
        yield broker
    finally:
        broker.stop()
