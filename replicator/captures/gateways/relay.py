"""One client's connection: bytes are forwarded in both directions, each call is followed to its end, and names checked.

A client of the metastore waits for each answer before it sends again: one that sends more before the first byte of an
answer is disconnected; bytes after that byte begin the next call. Calls that delete data are read completely and handed
over; all others are relayed as they arrive. Answers are not parsed.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Any, NoReturn

from replicator.captures.gateways import upstream as refusals
from replicator.captures.gateways.client_authentication import GSSAPI, Channel, NotAdmitted, prepare
from replicator.captures.gateways.drops import UpstreamLost, one_line, refusal
from replicator.captures.gateways.messages import (
    CALL,
    I64,
    INTERNAL_ERROR,
    LIST,
    ONEWAY,
    REPLY,
    STRING,
    UNKNOWN_METHOD,
    Field,
    Fields,
    Garbage,
    ListValue,
    MessageHeader,
    application_error,
    declared_error,
    find,
    parse_header,
    read_from,
    read_struct,
    text,
    write_struct,
)
from replicator.captures.gateways.security import Place, Service, TokenRefused, Tokens
from replicator.captures.gateways.targets import Bytes, Extent, MethodNames
from replicator.captures.gateways.upstream import CHUNK, HIDDEN, ServerEnd, handling
from replicator.errors import MetastoreError, MetastoreUnreachable
from replicator.metastore.transport import FrameError

# ---- identity --------------------------------------------------------------------------------------------------------
# Identity of a client at the metastore: calls by which clients claim it or request tokens, answered by the gateway.
# Pure.
#
# An authenticated client cannot change its identity: its connection to the metastore is its own from the first call on.


SET_UGI = "set_ugi"
TOKENS = frozenset({"get_delegation_token", "renew_delegation_token", "cancel_delegation_token"})
_META = 1  # the field of MetaException in the results of these calls

NO_TOKENS = (
    "the gateway issues no delegation tokens to this client: this requires token_key in [gateway] and a Kerberos "
    "ticket; a token of the metastore is not valid here"
)
UNNAMED = "the client has not identified itself: its first call must be set_ugi (hive.metastore.execute.setugi)"


def claimed(arguments: Fields) -> str:
    """Returns the user named by a set_ugi."""
    return (text(arguments, 1) or "").strip()


def answer(header: MessageHeader, arguments: Fields, user: str) -> bytes:
    """Returns the answer to a set_ugi of a client that is `user`."""
    if claimed(arguments) != user:
        return declared_error(header, _META, f"the client is {user}, and cannot become {claimed(arguments)[:100]!r}")
    groups = find(arguments, 2, LIST) or ListValue(STRING, ())
    return _result(header, LIST, groups)


def answer_token(header: MessageHeader, arguments: Fields, user: str, tokens: Tokens | None) -> bytes:
    """Returns the answer to a call of TOKENS by a client with a ticket of `user`. tokens: None: none are issued."""
    if tokens is None:
        return declared_error(header, _META, NO_TOKENS)
    first, second = text(arguments, 1) or "", text(arguments, 2) or ""
    try:
        if header.name == "get_delegation_token":
            return _result(header, STRING, tokens.give(user, first, second).encode())
        if header.name == "renew_delegation_token":
            return _result(header, I64, struct.pack(">q", tokens.renewed(user, first)))
        tokens.cancel(user, first)
    except TokenRefused as error:
        return declared_error(header, _META, str(error))
    return header.encode(REPLY) + write_struct(())


def _result(header: MessageHeader, kind: int, value: Any) -> bytes:
    return header.encode(REPLY) + write_struct((Field(0, kind, value),))


# ---- relay -----------------------------------------------------------------------------------------------------------


QUIET = 1.0  # seconds without a byte after which an answer counts as complete when the gateway is to stop
CALL_LIMIT = 16 << 20  # bytes of a call that is read completely: 100,000 partition names are 6 MB
VALUES_LIMIT = 250_000  # of such a call: each requires some hundred bytes of memory
LARGE, MANY = 256 * 1024, 5000  # bytes or values beyond which a call waits for one of LARGE_AT_ONCE permits
LARGE_AT_ONCE = 8
NAMES = MethodNames(HIDDEN)
UNKNOWN = (
    "may delete data in a way unknown to the gateway; if it is harmless, start the gateway with --pass-unknown-drops"
)

log = logging.getLogger(__name__)
log.addFilter(one_line)


class _Closed(Exception):
    """Raised when the connection is over. Its text is the reason for the log, if it is to be logged."""


class Connection:
    """Serves one client until it disconnects, is refused or too slow, or the gateway stops between two calls."""

    def __init__(self, client: socket.socket, name: str, service: Service) -> None:
        self._client, self._name, self._service = Channel(client), name, service
        self._connection = client  # not authenticated yet
        self._user: str | None = None  # the user, authenticated or claimed
        self._mechanism = ""  # of the authentication
        self._upstream: ServerEnd | None = None
        self._pending = bytearray()  # bytes of the client, not yet parsed
        self._passing: Extent | None = None  # a call of which a part has been forwarded
        self._passed = b""  # the end of that part
        self._call: MessageHeader | None = None  # the last one that was forwarded
        self._waiting = False  # its answer has not begun
        self._answered = False  # its answer has begun, and its end is not known
        self._place = Place(service.large)
        self._stopping = False
        self._patience = service.timeouts.client.total_seconds()
        self._since: float | None = time.monotonic()  # start of an incomplete call, or of the wait for its answer
        self.idle_since: float | None = None
        self._poll, self._client_poll = select.poll(), select.poll()
        self._buffer = bytearray(CHUNK)
        self._view = memoryview(self._buffer)

    def serve(self) -> None:
        """Serves the client. Never raises; both ends are closed when it returns."""
        try:
            self._admit()
            for poll in (self._poll, self._client_poll):
                poll.register(self._client, select.POLLIN)
                poll.register(self._service.stopping, select.POLLIN)
            while header := self._next_call():
                self._service.counts.add(calls=1)
                self._handle(header)
        except refusals.Refused as refused:
            self._service.counts.add(refused=int(refused.counted))
            log.warning("%s: %s", self._name, refused)
            with suppress(OSError, _Closed):
                self._answer(refused.answer)
        except (_Closed, NotAdmitted) as reason:
            if str(reason):
                log.warning("%s: %s", self._name, reason)
        except (OSError, UpstreamLost, FrameError) as error:
            log.info("%s: %s", self._name, error)
        except Exception:
            log.exception("%s: closed", self._name)
        finally:
            self._place.leave()
            self._client.close()
            if self._upstream is not None:
                self._upstream.close()

    def _admit(self) -> None:
        prepare(self._connection)
        try:
            admitted = self._service.authenticator.admit(self._connection, self._service.stopping, self._patience)
        except NotAdmitted as reason:
            self._service.counts.add(refused=bool(str(reason)))
            raise
        self._client, self._user, self._mechanism = admitted.channel, admitted.user, admitted.mechanism
        self._client.settimeout(self._patience)
        self._since = time.monotonic()

    def leave(self) -> None:
        """Stops reading from the client: the bytes sent so far are its last. May be called from any thread."""
        self._client.shut(socket.SHUT_RD)

    def cut(self, *, answers: bool) -> None:
        """Cuts the connection to the metastore and stops reading from the client; without `answers`, also stops writing
        to it. May be called from any thread."""
        if self._upstream is not None:
            self._upstream.shut()
        self._client.shut(socket.SHUT_RD if answers else socket.SHUT_RDWR)

    # ---- the client -----------------------------------------------------------------------------------------------

    def _next_call(self) -> MessageHeader | None:
        """Relays until the client begins another call. Returns None if there will be none."""
        while True:
            if self._pending and self._passing is None:
                if self._waiting:
                    assert self._call is not None
                    raise refusals.more(self._call)
                header = self._parse()
                if header is not None:
                    self._answered = False
                    return header
            self._since = self._since or (time.monotonic() if self._pending or self._client.partial else None)
            self.idle_since = time.monotonic() if self._is_between else None
            ready = self._ready(self._poll)
            self.idle_since = None
            if self._upstream is not None and self._upstream.fileno() in ready:
                self._relay_answer()
            elif self._stopping and self._is_between and (not self._answered or not ready or self._sends(ready)):
                return None  # the client sends another call, or the answer has ended
            elif self._sends(ready):
                if not self._receive():
                    return None
            elif not ready:
                self._too_slow()

    @property
    def _is_between(self) -> bool:
        """True if no call is running; the rest of an answer may still arrive."""
        return not self._pending and self._passing is None and not self._waiting

    def _sends(self, ready: set[int]) -> bool:
        return self._client.fileno() in ready

    def _ready(self, poll: select.poll) -> set[int]:
        """Returns descriptors with something to read. Empty if the awaited side has taken too long, or if nothing has
        arrived for a while after the gateway was stopped. The stop itself does not make a descriptor ready."""
        for_answer = self._waiting and self._passing is None
        while True:
            seconds = None
            if self._since is not None:
                allowed = self._service.timeouts.answer.total_seconds() if for_answer else self._patience
                seconds = max(0.0, self._since + allowed - time.monotonic())
            if self._stopping and not for_answer:
                seconds = min(QUIET, QUIET if seconds is None else seconds)
            here = {each.fileno() for each in self._ends(poll) if each.pending}
            seconds = 0.0 if here else seconds
            ready = here | {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)}
            if self._service.stopping not in ready:
                return ready
            self._stopping = True
            for each in (self._poll, self._client_poll):
                each.unregister(self._service.stopping)
            if self._is_between and not self._answered:
                return ready

    def _ends(self, poll: select.poll) -> list[Channel | ServerEnd]:
        """Returns the ends that a poll watches."""
        both = poll is self._poll and self._upstream is not None
        return [self._client, self._upstream] if both and self._upstream else [self._client]

    def _too_slow(self) -> NoReturn:
        if self._stopping:
            raise _Closed
        if self._waiting and self._passing is None:
            self._lost("no answer in time")
        if self._call is None and not self._pending:
            raise _Closed("sent nothing")
        raise _Closed("did not send a complete call in time")

    def _receive(self) -> bool:
        """Reads from the client; the rest of a call is forwarded at once. Returns False if it has disconnected."""
        size = self._client.receive_into(self._buffer)
        if not size:
            return size is None
        data = self._view[:size]
        if self._passing is None and not self._pending:
            self._since = time.monotonic()
        elif self._passing is not None:
            data = data[self._pass_on(data) :]
        self._pending += data
        return True

    def _receive_more(self) -> None:
        """Reads more of a call. Raises _Closed if the client disconnects first, or is too slow."""
        size = None
        while size is None:
            if not self._ready(self._client_poll):
                self._too_slow()
            size = self._client.receive_into(self._buffer)
        if not size:
            raise _Closed("disconnected in the middle of a call")
        self._pending += self._view[:size]

    def _parse(self) -> MessageHeader | None:
        try:
            header = parse_header(self._pending)
            if header is not None and header.kind not in (CALL, ONEWAY):
                raise Garbage("an answer instead of a call")
            return header
        except Garbage as error:
            first = self._call is None
            raise (refusals.strange(bytes(self._pending), error) if first else refusals.garbage(None, error)) from error

    # ---- one call -------------------------------------------------------------------------------------------------

    def _handle(self, header: MessageHeader) -> None:
        self._call = header
        handled = handling(header.name)
        if self._service.metastore.knows_users and (header.name == SET_UGI or header.name in TOKENS):
            self._identify(header)
        elif self._service.metastore.needs_user and self._user is None:
            self._refuse_call(header, INTERNAL_ERROR, f"is refused: {UNNAMED}")
        elif handled == "refuse":
            self._refuse_call(header, INTERNAL_ERROR, "deletes data that the gateway cannot protect")
        elif handled == "unknown" and not self._service.pass_unknown:
            self._refuse_call(header, UNKNOWN_METHOD, UNKNOWN)
        elif handled == "intercept":
            self._intercept(header, self._connected(header))
        else:
            self._connected(header)
            self._pass(header)

    def _connected(self, header: MessageHeader) -> ServerEnd:
        if self._upstream is not None:
            return self._upstream
        try:
            self._upstream = self._service.metastore.open(self._user)
        except MetastoreUnreachable as error:
            raise refusals.away(header, f"the metastore does not answer: {error.message}") from error
        except (OSError, MetastoreError) as error:
            raise refusals.away(header, f"the metastore refuses {self._user or 'the gateway'}: {error}") from error
        self._poll.register(self._upstream, select.POLLIN)
        return self._upstream

    def _identify(self, header: MessageHeader) -> None:
        """Answers a client that claims its identity, or requests a token for it."""
        arguments = self._read_call(header)
        self._place.leave()
        self._since = None
        if header.name in TOKENS:
            tokens = self._service.tokens if self._mechanism == GSSAPI else None
            self._answer(answer_token(header, arguments, self._user or "", tokens))
        else:
            self._user = self._user or claimed(arguments) or None
            self._answer(answer(header, arguments, self._user or ""))

    def _intercept(self, header: MessageHeader, upstream: ServerEnd) -> None:
        try:
            arguments = self._read_call(header)
            self._since = None
            answer = self._service.drops.run(header, arguments, lambda message: upstream.ask(header, message))
            self._answer(answer)
        except UpstreamLost as error:
            message = f"the connection to the metastore was lost during {header.name}: {error}"
            raise refusals.Refused(refusal(header, message), message) from error
        finally:
            self._place.leave()

    def _read_call(self, header: MessageHeader) -> Fields:
        """Returns the arguments of a call, read to their end. Refuses a call that is too large."""
        size = self._whole(header)
        whole = bytes(self._pending[:size])
        self._check_hidden(header, b"", whole[header.size :])
        try:
            fields = read_struct(read_from(whole, header.size)[0])
        except Garbage as error:
            raise refusals.garbage(header, error) from error
        del self._pending[:size]
        return fields

    def _whole(self, header: MessageHeader) -> int:
        """Returns the number of bytes of a call, after reading all of them."""
        extent, at = Extent(), header.size
        try:
            while True:
                with memoryview(self._pending) as there:
                    at += extent.feed(there[at:])
                if at > CALL_LIMIT or extent.values > VALUES_LIMIT:
                    raise refusals.large(header, f"more than {CALL_LIMIT >> 20} MiB or {VALUES_LIMIT:,} values")
                if (at > LARGE or extent.values > MANY) and not self._place.take(self._patience):
                    raise refusals.large(header, "there are too many large calls at once")
                if extent.ended:
                    return at
                self._receive_more()
        except Garbage as error:
            raise refusals.garbage(header, error) from error

    def _pass(self, header: MessageHeader) -> None:
        """Forwards the bytes already read of a call; the rest follows as it arrives."""
        self._passing, self._passed = Extent(), b""
        self._waiting = header.kind == CALL
        del self._pending[: self._pass_on(memoryview(bytes(self._pending)), header.size)]

    def _pass_on(self, data: memoryview, head: int = 0) -> int:
        """Forwards the bytes that belong to the current call and returns their number; refuses the call if others
        follow them. `head`: how many of them are its header."""
        assert self._passing is not None and self._call is not None
        try:
            size = head + self._passing.feed(data[head:])
        except Garbage as error:
            raise refusals.garbage(self._call, error) from error
        if size < len(data) and self._waiting:
            raise refusals.more(self._call)
        self._check_hidden(self._call, self._passed, data[:size])
        self._passed = NAMES.tail(self._passed, data[:size])
        self._forward(data[:size])
        if self._passing.ended:
            self._passing = None
            self._since = time.monotonic() if self._waiting else None
        elif size == CHUNK:
            self._since = time.monotonic()  # the client sends at full speed
        return size

    # ---- refused calls --------------------------------------------------------------------------------------------

    def _refuse_call(self, header: MessageHeader, kind: int, why: str) -> None:
        """Refuses a call by its name; the connection continues."""
        self._read_call(header)
        self._place.leave()
        self._since = None
        self._service.counts.add(refused=1)
        log.warning("%s: refused %s", self._name, header.name)
        self._answer(application_error(header, kind, f"{header.name} {why}"))

    def _check_hidden(self, header: MessageHeader, before: bytes, data: Bytes) -> None:
        if name := NAMES.find(before, data):
            raise refusals.hidden(header, name)

    # ---- both ends ------------------------------------------------------------------------------------------------

    def _answer(self, data: Bytes) -> None:
        """Sends an answer in chunks, because the timeout applies to each."""
        with memoryview(data) as view:
            for at in range(0, len(view), CHUNK):
                try:
                    self._client.sendall(view[at : at + CHUNK])
                except TimeoutError as error:
                    raise _Closed("does not read its answer") from error

    def _forward(self, data: Bytes) -> None:
        assert self._upstream is not None
        try:
            self._upstream.send(data)
        except UpstreamLost as error:
            self._lost(str(error))

    def _relay_answer(self) -> None:
        assert self._upstream is not None
        try:
            size = self._upstream.receive_into(self._buffer)
        except UpstreamLost as error:
            self._lost(str(error))
        if size is None:
            return
        if self._waiting and self._passing is None:
            self._since = None
        self._waiting, self._answered = False, True
        self._answer(self._view[:size])

    def _lost(self, reason: str) -> NoReturn:
        """Handles a lost metastore: a client without any byte of an answer gets an error, others are disconnected."""
        if self._waiting:
            assert self._call is not None
            raise refusals.lost(self._call, reason)
        raise _Closed
