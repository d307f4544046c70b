"""A gateway in front of a real metastore, for tests: what goes through it, and what `$cmroot` has afterwards."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from names import unique
from plain_tables import PlainDatabase
from raw_thrift import RawClient, Said

from cmroot.keep.content import locate
from cmroot.log.references import read_intercepted
from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.gateways.security import GatewaySettings
from replicator.captures.gateways.server import Gateway, opened
from replicator.core.connections import MetastoreConfig
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect

ALL = 1 << 62
GRACE = timedelta(seconds=0.5)
FILES = {"one": "1\x01one\n", "two": "2\x01two\n"}


def contents(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


@dataclass
class Guarded:
    """One database behind a gateway. `direct` speaks to the metastore, `client` through the gateway."""

    running: Running
    root: ChangeRoot
    gateway: Gateway
    direct: ThriftMetastore
    database: PlainDatabase
    client: RawClient

    @property
    def db(self) -> str:
        return self.database.name

    @property
    def uri(self) -> str:
        return self.gateway.uri

    def call(self, name: str, *arguments: Any, **numbered: Any) -> Said:
        """A call through the gateway; must succeed."""
        output = self.client.call(name, *arguments, **numbered)
        assert not output.failed, output.message
        return output

    def place(self, name: str) -> Path:
        return self.database.home / name

    @cached_property
    def through(self) -> ThriftMetastore:
        return connect(self.gateway.uri)

    # ---- what was taken -------------------------------------------------------------------------------------------

    def taken(self) -> dict[str, str]:
        """`table/partition/path` -> content, of what waits for the capture; its bytes are looked at."""
        found = {}
        for row, _ in self.entries():
            path = Path(locate(self.root.place, row["checksum"], row["size"]))
            found["/".join(filter(None, (row["table"], row["partition"], row["path"])))] = path.read_text()
        return found

    def entries(self) -> list[tuple[dict[str, Any], int]]:
        """(file entry, event) of everything that was taken in this database."""
        return [
            (row, taken.event)
            for taken in read_intercepted(self.root.place, ALL)
            for row in taken.rows().to_pylist()
            if row["db"] == self.db
        ]

    def events(self) -> dict[int, str]:
        """Of this database: id -> type."""
        return {event.id: event.type for event in self.direct.next_events(0) if event.db == self.db}

    def is_settled(self) -> bool:
        return list(Path(self.root.place, "taking").iterdir()) == []


@contextlib.contextmanager
def guarded(
    running: Running,
    here: Path,
    *,
    upstream: str | MetastoreConfig | None = None,
    owner: MetastoreConfig | None = None,
    cmroot: Path | None = None,
    **options: Any,
) -> Iterator[Guarded]:
    """A gateway with a `$cmroot` of its own, and an empty database behind it. `upstream`: another way to there;
    `owner`: that of who makes the database."""
    root = create_or_open(str(cmroot or here / "cmroot"))
    with connect(owner or running.uri) as direct, connect(upstream or running.uri) as asked:
        database = PlainDatabase(direct, unique("guarded"), running.warehouse)
        database.create()
        with (
            opened(asked, root, "127.0.0.1:0", GatewaySettings(**{"grace": GRACE, **options})) as gateway,
            RawClient(gateway.uri) as client,
        ):
            yield Guarded(running, root, gateway, direct, database, client)


class Wire:
    """A way to a metastore that can be cut: forwards connections, and calls `on_call` with the bytes of each request.

    What `on_call` returns: None to go on; "cut" to close the connection before the metastore sees the call; "swallow"
    to close it when the answer is there."""

    def __init__(self, uri: str) -> None:
        host, _, port = uri.removeprefix("thrift://").rpartition(":")
        self._target = (host, int(port))
        self.on_call: Callable[[bytes], str | None] = lambda data: None
        self._listener = self._listen(0)
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def open_again(self, uri: str) -> None:
        """After `close`: under the same address, to another metastore."""
        self._target = ("127.0.0.1", int(uri.rpartition(":")[2]))
        self.on_call = lambda data: None
        self._listener = self._listen(int(self.uri.rpartition(":")[2]))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as upstream:
            verdict: list[str | None] = [None]
            threading.Thread(target=self._answers, args=(client, upstream, verdict), daemon=True).start()
            while data := client.recv(1 << 16):
                verdict[0] = self.on_call(data)
                if verdict[0] == "cut":
                    return
                upstream.sendall(data)

    @staticmethod
    def _answers(client: socket.socket, upstream: socket.socket, verdict: list[str | None]) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                if verdict[0] == "swallow":
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()
