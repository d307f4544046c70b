"""Events of runs in OpenLineage's words, to a file and to a real receiver."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from replicator.core.config import parse_config
from replicator.core.service_config import LineageConfig
from replicator.errors import ConfigError, StoreUnreachable
from replicator.policies.lineage import SCHEMA, Lineage
from replicator.policies.run import SyncRun

KEYS = {"source": "thrift://a:9083", "target": "thrift://b:9083", "databases": ["d"]}
KEYS |= {"cmroot": "/cm", "target_cmroot": "/tcm", "dumps": "/dumps"}


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    got: list[tuple[str, dict[str, Any]]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api/v1/lineage", got
        server.shutdown()


def lineage(**keys: str) -> Lineage:
    return Lineage(LineageConfig(**keys), parse_config({"policies": {"west": KEYS}}, "test").policies["west"])


def check(event: dict[str, Any]) -> None:
    """What the specification requires of a RunEvent."""
    assert set(event) == {"eventType", "eventTime", "run", "job", "inputs", "outputs", "producer", "schemaURL"}
    assert datetime.fromisoformat(event["eventTime"]).tzinfo and uuid.UUID(event["run"]["runId"])
    assert event["job"] == {"namespace": "replicator", "name": "west"} and event["schemaURL"] == SCHEMA
    for facet in event["run"]["facets"].values():
        assert facet["_producer"] == event["producer"] and facet["_schemaURL"].startswith("https://")


def test_a_run_is_told_from_its_start(tmp_path: Path, receiver: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
    url, got = receiver
    (tmp_path / "token").write_text("token-of-lineage\n")
    told = lineage(file=str(tmp_path / "events"), url=url, token=f"file:{tmp_path}/token")

    def work() -> SyncRun:
        assert [event["eventType"] for _, event in got] == ["START"], "before it works"
        return SyncRun("west", run="x")

    assert told.told(work).warnings == []
    told.done(SyncRun("west", run="y"))

    def failing() -> SyncRun:
        raise StoreUnreachable("it is away")

    with pytest.raises(StoreUnreachable):
        told.told(failing)
    told.failed(StoreUnreachable("again"))
    events = [event for _, event in got]
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"] * 2 + ["START", "FAIL"] * 2
    assert [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()] == events
    assert {authorization for authorization, _ in got} == {"Bearer token-of-lineage"}
    for one, other in zip(events[::2], events[1::2], strict=True):
        check(one)
        check(other)
        assert one["run"]["runId"] == other["run"]["runId"] and one["eventTime"] <= other["eventTime"]
    assert events[5]["run"]["facets"]["errorMessage"]["message"] == "it is away"


def test_a_receiver_that_is_away_is_a_warning(tmp_path: Path) -> None:
    told = lineage(url="http://127.0.0.1:9/none", file=str(tmp_path / "events"))
    found = told.told(lambda: SyncRun("west"))
    assert [each.split(":")[1] for each in found.warnings] == [" START was not received", " COMPLETE was not received"]
    missing = told.told(lambda: SyncRun("west", dumps=[str(tmp_path / "gone")]))
    assert any("tables" in each for each in missing.warnings)
    assert lineage().told(lambda: SyncRun("west")).warnings == []


def test_a_full_disk_spoils_no_line_and_silences_no_other_receiver(
    tmp_path: Path, receiver: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    url, got = receiver
    file, script = tmp_path / "events", tmp_path / "send.py"
    file.write_text('{"torn":')
    script.write_text(
        "import resource, signal, sys\n"
        "from replicator.core.service_config import LineageConfig\n"
        "from replicator.policies.lineage import send\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))\n"
        "config = LineageConfig(file=sys.argv[1], url=sys.argv[2])\n"
        "try:\n    send(config, b'{\"a\": \"' + b'x' * 100 + b'\"}')\n"
        "except OSError:\n    print('full')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "send(config, b'{\"b\": 1}')\n"
    )
    done = subprocess.run([sys.executable, str(script), str(file), url], capture_output=True, text=True, check=True)
    assert done.stdout == "full\n"
    assert file.read_text() == '{"torn":\n{"b": 1}\n', "nothing of the event that did not fit"
    assert [list(body) for _, body in got] == [["a"], ["b"]]


@pytest.mark.parametrize("keys", [{"url": "ftp://a"}, {"url": "http://u:p@a/"}, {"token": "written-out"}])
def test_a_wrong_receiver_is_named(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="lineage") as caught:
        parse_config({"lineage": keys}, "test")
    assert "written-out" not in str(caught.value)
