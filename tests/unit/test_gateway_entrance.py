"""Frames of the gateway's connections however their bytes arrive, and refusals that other clients can read."""

from __future__ import annotations

import select
import socket
from struct import pack

import pytest
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TFramedTransport, TMemoryBuffer
from waiting import CEILING

from cmroot.authentication import parsed
from replicator.captures.gateways import client_authentication as channels
from replicator.captures.gateways.client_authentication import Channel, NotAdmitted
from replicator.captures.gateways.local_names import LocalNames, in_their_words
from replicator.captures.gateways.security import DigestProof, Tokens
from replicator.core.connections import MetastoreConfig
from replicator.errors import IdentityRefused
from replicator.metastore.sasl import Digest
from replicator.metastore.transport import FrameError, Quality, Unlayered, frame, message, read_message

TOKENS = Tokens("k" * 32, LocalNames("EXAMPLE.COM", ["EXAMPLE.COM"]))


class Masked:
    """A layer that changes each byte and adds some."""

    lasts = True

    def wrap(self, data: bytes) -> bytes:
        return b"<<" + bytes(255 - each for each in data)

    def unwrap(self, data: bytes) -> bytes:
        if data[:2] != b"<<":
            raise FrameError("not wrapped")
        return bytes(255 - each for each in data[2:])


def received(channel: Channel, size: int, limit: int) -> bytes:
    data, buffer = b"", bytearray(limit)
    while len(data) < size:
        if not channel.pending:
            select.select([channel], [], [], CEILING)
        if count := channel.receive_into(buffer):
            data += buffer[:count]
    return data


@given(
    pieces=st.lists(st.binary(min_size=0, max_size=50), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 20), min_size=1),
    limit=st.integers(1, 64),
    layered=st.booleans(),
)
def test_frames_are_plain_bytes_however_they_arrive(
    pieces: list[bytes], cuts: list[int], limit: int, layered: bool
) -> None:
    layer = Masked() if layered else Unlayered()
    wire = b"".join(frame(layer.wrap(piece)) for piece in pieces)
    near, far = socket.socketpair()
    with near, far:
        channel, got, at = Channel(near, layer), b"", 0
        buffer = bytearray(limit)
        for number in range(len(wire)):
            if at >= len(wire):
                break
            size = cuts[number % len(cuts)]
            far.sendall(wire[at : at + size])
            at += size
            while channel.pending or select.select([near], [], [], 0)[0]:
                if count := channel.receive_into(buffer):
                    got += buffer[:count]
        assert got == b"".join(pieces) and not channel.partial and not channel.pending
        far.close()
        assert channel.receive_into(buffer) == 0


def test_what_is_sent_is_in_pieces_that_the_other_side_takes() -> None:
    near, far = socket.socketpair()
    with near, far:
        sender, receiver = Channel(near, Masked()), Channel(far, Masked())
        data = bytes(range(256)) * 300
        sender.sendall(data)
        assert far.recv(4, socket.MSG_PEEK) == pack(">I", channels.LAYERED_PIECE + 2)
        assert received(receiver, len(data), 1 << 16) == data


def test_a_frame_that_is_too_large_or_not_the_peers_is_an_error() -> None:
    for wire in (pack(">I", channels.LARGEST_WRAPPED + 1), frame(b"plain")):
        near, far = socket.socketpair()
        with near, far:
            far.sendall(wire)
            with pytest.raises(FrameError):
                Channel(near, Masked()).receive_into(bytearray(64))


def test_a_shut_channel_of_another_thread_ends() -> None:
    near, far = socket.socketpair()
    with near, far:
        channel = Channel(near, Unlayered())
        channel.shut(socket.SHUT_RD)
        channel.shut(socket.SHUT_RD)
        assert channel.receive_into(bytearray(8)) == 0


@pytest.mark.parametrize("kind", ["binary", "framed", "compact"])
@pytest.mark.parametrize("number", [0, 7, 300])
def test_a_refusal_is_an_error_that_other_clients_show(kind: str, number: int) -> None:
    asked = TMemoryBuffer()
    transport = TFramedTransport(asked) if kind == "framed" else asked
    protocol = TCompactProtocol if kind == "compact" else TBinaryProtocol
    client = ThriftHiveMetastore.Client(protocol(transport))
    client._seqid = number
    client.send_get_all_databases()
    answer = TMemoryBuffer(in_their_words(asked.getvalue(), "TLS is required here, and more " * 10))
    heard = ThriftHiveMetastore.Client(protocol(TFramedTransport(answer) if kind == "framed" else answer))
    with pytest.raises(TApplicationException, match="TLS is required"):
        heard.recv_get_all_databases()


def test_a_sasl_client_gets_the_reason_in_a_sasl_message() -> None:
    words = in_their_words(message(1, b"GSSAPI"), "no")  # type: ignore[arg-type]
    status, said = read_message(TMemoryBuffer(words).read)
    assert (status.name, said) == ("BAD", b"no")


@given(begin=st.binary(min_size=2, max_size=40))
def test_any_first_bytes_have_an_answer_or_none(begin: bytes) -> None:
    assert isinstance(in_their_words(begin, "no"), bytes)


@pytest.mark.parametrize("piece", [b"a", b" ", b"a ", b"a=", b'a="', b'"', b"\\", b","])
def test_an_answer_of_anybody_to_the_digest_is_refused_at_once(piece: bytes) -> None:
    """All clients of a gateway wait while it is read. Of so many bytes it would be read for hours, if that took a time
    that grows with their square."""
    proof = DigestProof(TOKENS, Quality.AUTHENTICATION)
    with pytest.raises(NotAdmitted):
        proof.accept(lambda _: piece * (4_000_000 // len(piece)), b"")


def test_the_pairs_of_a_digest() -> None:
    said = rb'realm="a\"b",  nonce="x,y" ,,qop=auth,charset=utf-8, e="",realm=other,=x,late=1'
    assert parsed(said) == {"realm": 'a"b', "nonce": "x,y", "qop": "auth", "charset": "utf-8", "e": ""}


def test_a_server_that_proves_the_digest_with_other_letters_than_ascii_is_refused() -> None:
    client = Digest(TOKENS.give("anna", "", ""), MetastoreConfig("thrift://a:1"))
    assert client.answer(b'nonce="n",qop="auth"')
    with pytest.raises(IdentityRefused, match="does not know the delegation token"):
        client.answer("rspauth=é".encode())
