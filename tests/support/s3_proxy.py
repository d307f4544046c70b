"""A proxy in front of an S3 endpoint: it counts requests by their kind, and disturbs them on demand."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Proxy:
    """counts: requests by kind (`LIST`, `HEAD`, `GET`, `PUT`, `COPY`, `DELETE`, `DELETE many`, `POST`). fails: of
    (kind, path), whether the request gets 503 and goes no further. loses: whether it takes effect, and gets 503.
    forbids: of a path with its query, whether the request gets 403.
    spoils: of (path, body of a PUT), the body that goes on. cuts: of (path, body of an answer to GET), after how many
    bytes the connection breaks. strips: headers, in small letters, that go no further. strict: digests are compared and
    conditions of copies heeded, as by S3 and not by moto."""

    endpoint: str
    url: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    fails: Callable[[str, str], bool] = lambda kind, path: False
    loses: Callable[[str, str], bool] = lambda kind, path: False
    forbids: Callable[[str], bool] = lambda path: False
    spoils: Callable[[str, bytes], bytes] = lambda path, body: body
    cuts: Callable[[str, bytes], int] = lambda path, body: len(body)
    strict: bool = True
    tags: dict[str, str] = field(default_factory=dict)  # of objects that were written whole, by path
    strips: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, path: str) -> bool:
        """Whether it is to be passed on."""
        with self.lock:
            self.counts[kind] += 1
            return not self.fails(kind, path)

    def taken(self) -> Counter[str]:
        """What was counted since the last time."""
        with self.lock:
            counts, self.counts = self.counts, Counter()
        return counts


def kind_of(method: str, path: str, copies: bool) -> str:
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "versions" in query or "prefix" in query):
        return "LIST"
    if method == "PUT" and copies:
        return "COPY"
    return "DELETE many" if method == "POST" and "delete" in query else method


@contextmanager
def counting(endpoint: str) -> Iterator[Proxy]:
    """endpoint: `http://host:port`. The Host header stays the client's, so that signatures hold."""
    proxy = Proxy(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            kind = kind_of(self.command, self.path, "x-amz-copy-source" in self.headers)
            if not proxy.count(kind, self.path):
                self._slow_down()
                return
            if proxy.forbids(self.path):
                self._refuse(403, "AccessDenied")
                return
            behind = HTTPConnection(urlsplit(endpoint).netloc)
            if kind == "PUT":
                body = proxy.spoils(self.path, body)
            if proxy.strict and (refusal := self._refusal(kind, body)):
                self._refuse(*refusal)
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in proxy.strips}
            behind.request(self.command, self.path, body, headers)
            answer = behind.getresponse()
            data = answer.read()
            if proxy.loses(kind, self.path):
                self._slow_down()
                return
            if kind == "PUT" and (tag := answer.getheader("ETag")):
                proxy.tags[urlsplit(self.path).path] = tag
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            told = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", told or str(len(data)))
            self.end_headers()
            end = proxy.cuts(self.path, data) if kind == "GET" else len(data)
            self.wfile.write(data[:end])
            self.close_connection = end < len(data)
            behind.close()

        def _slow_down(self) -> None:
            self.send_response(503, "Slow Down")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _refusal(self, kind: str, body: bytes) -> tuple[int, str] | None:
            digest, wanted = self.headers.get("Content-MD5"), self.headers.get("x-amz-copy-source-if-match")
            if kind == "PUT" and digest and digest != base64.b64encode(hashlib.md5(body).digest()).decode():
                return 400, "BadDigest"
            source = proxy.tags.get("/" + str(self.headers["x-amz-copy-source"]).lstrip("/"))
            if kind == "COPY" and wanted and source and source != wanted:
                return 412, "PreconditionFailed"
            return None

        def _refuse(self, status: int, code: str) -> None:
            body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
