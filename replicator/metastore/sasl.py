"""SASL of metastore connections: Kerberos (GSSAPI, RFC 4752), and passwords and tokens (PLAIN, DIGEST-MD5).

A keytab's tickets are stored in memory and acquired again once half of their lifetime is over; a ticket cache is read
at each connection, and renewed by `kinit -R` while it can be.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from cmroot.authentication import CIPHER, DigestLayer, parsed, replied
from replicator.core.connections import MetastoreConfig, read_secret
from replicator.errors import ConfigError, IdentityRefused, MetastoreError, NotAMetastore, NotAuthenticated, UsageError
from replicator.metastore.transport import (
    FrameError,
    Layer,
    Quality,
    Read,
    Status,
    Unlayered,
    message,
    read_message,
    reading,
)

# ---- negotiation -----------------------------------------------------------------------------------------------------
# The client's side of a SASL negotiation, as Hive's own client performs it.


OTHER_MECHANISM = (
    'set auth in [metastores.NAME]: "kerberos" (GSSAPI), "plain" (a user with a password) or "token" (DIGEST-MD5)'
)


class Mechanism(Protocol):
    """An authentication. `complete`: no more messages are required; then `layer` protects the data that follow."""

    name: str
    shown: str  # the identity, for messages
    refused: str  # a hint for a server that refuses it

    @property
    def complete(self) -> bool: ...

    @property
    def layer(self) -> Layer: ...

    def first(self) -> bytes:
        """Returns the initial response. Raises IdentityRefused, NotAuthenticated."""
        ...

    def answer(self, challenge: bytes) -> bytes:
        """Returns the response to a challenge. Raises IdentityRefused, NotAuthenticated."""
        ...


class Layered:
    """A mechanism that negotiates its layer at the end."""

    _layer: Layer | None = None

    @property
    def layer(self) -> Layer:
        if self._layer is None:
            raise AssertionError("the negotiation has not ended")
        return self._layer


def negotiate(connection: socket.socket, mechanism: Mechanism) -> Layer:
    """Negotiates and returns the layer. Raises IdentityRefused if the server refuses, NotAMetastore if it does not
    support SASL or this mechanism, NotAuthenticated, OSError and EOFError if the connection dies."""
    read = reading(connection)
    said = mechanism.first()
    connection.sendall(message(Status.START, mechanism.name.encode()) + message(_status(mechanism), said))
    status = Status.OK
    while status is Status.OK and not mechanism.complete:
        status, challenge = _next(read, mechanism)
        said = mechanism.answer(challenge)
        if status is Status.OK:
            connection.sendall(message(_status(mechanism), said))
    if not mechanism.complete:
        raise IdentityRefused("the server ended the SASL negotiation before it had proved its own identity")
    if status is Status.OK:
        status, _ = _next(read, mechanism)
        if status is not Status.COMPLETE:
            raise IdentityRefused("the server did not end the SASL negotiation")
    return mechanism.layer


def _status(mechanism: Mechanism) -> Status:
    return Status.COMPLETE if mechanism.complete else Status.OK


def _next(read: Read, mechanism: Mechanism) -> tuple[Status, bytes]:
    status, payload = read_message(read)
    if status in (Status.OK, Status.COMPLETE):
        return status, payload
    said = payload.decode("utf-8", "replace").strip()
    if "nsupported mechanism" in said:
        raise NotAMetastore(f"the server speaks SASL, but not {mechanism.name}: {said}", hint=OTHER_MECHANISM)
    raise IdentityRefused(f"the server refused {mechanism.shown}: {said or status.name}", hint=mechanism.refused)


# ---- kerberos --------------------------------------------------------------------------------------------------------


try:
    import gssapi
except ImportError:  # the extra is not installed, or the system has no Kerberos libraries
    gssapi = None


DEFAULT_PRINCIPAL = "hive/_HOST"
RENEW_WITHIN = 600  # remaining seconds of a ticket
LEAST = 60  # seconds that a connection's tickets must last for another call
LARGEST = 0xFFFFFF  # maximum size of a wrapped message, as RFC 4752 encodes it; Java does not check it
LEAST_QUALITY = {
    None: Quality.AUTHENTICATION,
    "authentication": Quality.AUTHENTICATION,
    "integrity": Quality.INTEGRITY,
    "privacy": Quality.PRIVACY,
}

_CLOCK = "set both clocks by NTP: Kerberos allows 5 minutes"
_CAUSES: tuple[tuple[tuple[str, ...], type[MetastoreError], str], ...] = (
    (("clock skew",), NotAuthenticated, _CLOCK),
    (("cannot contact any kdc", "cannot find kdc", "resolve network address for kdc"), NotAuthenticated,
     "check the realm's KDC in krb5.conf (KRB5_CONFIG), and that it runs"),
    (("ticket expired", "credentials have expired", "credential has expired", "context has expired"), NotAuthenticated,
     "run kinit again, or set keytab and client_principal in [metastores.NAME], whose tickets are renewed"),
    (("no kerberos credentials", "no credentials cache", "credentials cache file", "no credentials were supplied"),
     NotAuthenticated, "run kinit, or set keytab and client_principal in [metastores.NAME]"),
    (("server not found", "not found in kerberos database"), IdentityRefused,
     "check principal (`hive/_HOST@REALM`; _HOST is the host of the URI) and client_principal in [metastores.NAME]"),
    (("preauthentication failed", "password incorrect", "decrypt integrity check failed", "keytab"), IdentityRefused,
     "check that keytab has the current key of client_principal (klist -k)"),
)  # fmt: skip

T = TypeVar("T")


class Tickets:
    """The source of a client's tickets. May be used by any thread."""

    def __init__(self, config: MetastoreConfig) -> None:
        if gssapi is None:
            raise UsageError(
                "Kerberos needs the gssapi package", hint="pip install 'replicator[kerberos]' (and libkrb5-dev, gcc)"
            )
        self._config = config
        self._memory = f"MEMORY:replicator-{uuid.uuid4().hex}"

    def credentials(self) -> Any:
        """Returns valid credentials. Raises NotAuthenticated, IdentityRefused."""
        config, store = self._config, {}
        if config.keytab:
            if not os.access(config.keytab, os.R_OK):
                raise IdentityRefused(f"keytab {config.keytab} cannot be read", hint="check its path and rights")
            store = {"client_keytab": config.keytab, "ccache": self._memory}
        elif config.ticket_cache:
            store = {"ccache": config.ticket_cache}
        name = self._client()
        if config.keytab and not self._has_key(name):
            raise IdentityRefused(
                f"keytab {config.keytab} has no key of {config.client_principal}", hint="klist -k lists its keys"
            )
        found = said(lambda: _acquire(name, store), self._shown)
        if not config.keytab and found[1] < RENEW_WITHIN and _renew(config.ticket_cache):
            found = said(lambda: _acquire(name, store), self._shown)
        if found[1] <= 0:
            raise NotAuthenticated(f"{self._shown}: the tickets have run out", hint=_CAUSES[2][2])
        return found[0]

    def _has_key(self, name: Any) -> bool:
        try:
            gssapi.Credentials(name=name, usage="accept", store={"keytab": self._config.keytab})
        except gssapi.exceptions.GSSError:
            return False
        return True

    @property
    def _shown(self) -> str:
        config = self._config
        return config.client_principal or (f"tickets of {config.ticket_cache}" if config.ticket_cache else "tickets")

    def _client(self) -> Any:
        named = self._config.client_principal
        return None if named is None else said(lambda: gssapi.Name(named, gssapi.NameType.kerberos_principal), named)


class Gssapi(Layered):
    """The client's side of SASL GSSAPI. `host`: the host of the URI."""

    name = "GSSAPI"
    refused = (
        "check that principal in [metastores.NAME] is the server's own (hive.metastore.kerberos.principal), that the "
        "server's keytab is the current one, and both clocks"
    )

    def __init__(self, config: MetastoreConfig, tickets: Tickets, host: str) -> None:
        self._server = principal(config.principal, host)
        self._least = LEAST_QUALITY[config.protection]
        credentials = tickets.credentials()
        self.shown = said(lambda: str(credentials.name), "tickets")
        flags = gssapi.RequirementFlag
        self._context = said(
            lambda: gssapi.SecurityContext(
                name=server_name(self._server),
                creds=credentials,
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.confidentiality,
            ),
            self._what,
        )

    @property
    def complete(self) -> bool:
        return self._layer is not None

    def first(self) -> bytes:
        return self._step(None)

    def answer(self, challenge: bytes) -> bytes:
        if not self._context.complete:
            return self._step(challenge)
        offer = said(lambda: self._context.unwrap(challenge).message, self._what)
        if len(offer) != 4:
            raise IdentityRefused(f"{self._server} offers no SASL layer")
        chosen = strongest(offer[0], self._least)
        self._layer = layer(self._context, chosen)
        size = LARGEST if chosen > Quality.AUTHENTICATION else 0
        reply = bytes([chosen]) + size.to_bytes(3, "big")
        return said(lambda: bytes(self._context.wrap(reply, False).message), self._what)

    def _step(self, token: bytes | None) -> bytes:
        return said(lambda: self._context.step(token), self._what) or b""

    @property
    def _what(self) -> str:
        return f"{self.shown} to {self._server}"


class Wrapped:
    """A layer of messages wrapped by GSSAPI, encrypted if `private`. For either side."""

    def __init__(self, context: Any, private: bool) -> None:
        self._context, self._private = context, private

    @property
    def lasts(self) -> bool:
        try:
            return bool(self._context.lifetime > LEAST)
        except gssapi.exceptions.GSSError:
            return False

    def wrap(self, data: bytes) -> bytes:
        return said(lambda: bytes(self._context.wrap(data, self._private).message), "wrap")

    def unwrap(self, data: bytes) -> bytes:
        try:
            unwrapped = self._context.unwrap(data)
        except gssapi.exceptions.GSSError as error:
            raise FrameError(f"a frame is not from the peer: {_text(error)}") from error
        if self._private and not unwrapped.encrypted:
            raise FrameError("a frame is not encrypted")
        return bytes(unwrapped.message)


def layer(context: Any, chosen: Quality) -> Layer:
    """Returns the layer of a context, for either side."""
    return Unlayered() if chosen is Quality.AUTHENTICATION else Wrapped(context, chosen is Quality.PRIVACY)


def strongest(offered: int, least: Quality) -> Quality:
    """Returns the best of the offered qualities, a sum of bits. Raises IdentityRefused if all are below `least`."""
    found = [each for each in Quality if offered & each and each >= least]
    if not found:
        raise IdentityRefused(
            f"the server does not offer the protection {least.name.lower()}",
            hint="set hadoop.rpc.protection at the server, or protection in [metastores.NAME]",
        )
    return max(found)


def principal(given: str | None, host: str) -> str:
    """Returns the server's principal, with the host in place of `_HOST`, in lower case as in Hadoop."""
    return (given or DEFAULT_PRINCIPAL).replace("/_HOST", f"/{host.lower()}")


def server_name(text: str) -> Any:
    """Returns the name of exactly that principal if it has a realm; otherwise it is resolved as krb5.conf defines."""
    if "@" in text or "/" not in text:
        return gssapi.Name(text, gssapi.NameType.kerberos_principal)
    return gssapi.Name(text.replace("/", "@", 1), gssapi.NameType.hostbased_service)


def said(work: Callable[[], T], what: str) -> T:
    """Runs `work()` and translates an error of GSSAPI to one of this program, with its cause and a hint."""
    try:
        return work()
    except gssapi.exceptions.GSSError as error:
        text = _text(error)
        for words, kind, hint in _CAUSES:
            if any(word in text.lower() for word in words):
                raise kind(f"Kerberos: {what}: {text}", hint=hint) from error
        raise IdentityRefused(f"Kerberos: {what}: {text}", hint="KRB5_TRACE=/dev/stderr shows each step") from error


def _acquire(name: Any, store: dict[str, str]) -> tuple[Any, float]:
    """Returns credentials, and their remaining seconds."""
    found = gssapi.Credentials(name=name, usage="initiate", store=store or None)
    return found, float(found.lifetime)


def _renew(cache: str | None) -> bool:
    """Renews tickets. Returns True if they were renewed; tickets that cannot be renewed do not change."""
    if (kinit := shutil.which("kinit")) is None:
        return False
    command = [kinit, "-R", *(["-c", cache] if cache else [])]
    return not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30).returncode


def _text(error: Any) -> str:
    """Returns Kerberos' own message, or else GSSAPI's message for the kind of error."""
    major, _, minor = str(error.gen_message()).partition(", Minor (")
    said = minor.partition("): ")[2].strip()
    return said if said not in ("", "Success") else major.partition("): ")[2].strip() or str(error)


# ---- passwords -------------------------------------------------------------------------------------------------------
# SASL with a shared secret: PLAIN (RFC 4616) with a password, DIGEST-MD5 (RFC 2831) with a delegation token.


REALM = "default"  # realm of Hadoop's DIGEST-MD5, which has no protocol name either
DIGEST_URI = f"null/{REALM}"
_QUALITIES = {"auth": Quality.AUTHENTICATION, "auth-int": Quality.INTEGRITY, "auth-conf": Quality.PRIVACY}


class PlainPassword:
    """The SASL mechanism PLAIN."""

    name = "PLAIN"
    refused = "check user and password in [metastores.NAME]"
    complete = True  # after its first message
    layer: Layer = Unlayered()

    def __init__(self, config: MetastoreConfig) -> None:
        self.shown = f"user {config.user}"
        self._said = f"\0{config.user}\0{read_secret(config.password or '', 'password')}".encode()

    def first(self) -> bytes:
        return self._said

    def answer(self, challenge: bytes) -> bytes:
        raise IdentityRefused("the server requires more than a password")


class Digest(Layered):
    """The SASL mechanism DIGEST-MD5, as the owner of a delegation token."""

    name = "DIGEST-MD5"
    refused = "get another delegation token: this one has expired, was cancelled, or belongs to another metastore"
    shown = "the delegation token"

    def __init__(self, token: str, config: MetastoreConfig) -> None:
        self._user, self._password = credentials_of(token)
        self._least = LEAST_QUALITY[config.protection]
        self._expected = ""
        self.complete = False

    def first(self) -> bytes:
        return b""

    def answer(self, challenge: bytes) -> bytes:
        said = parsed(challenge)
        if self._expected:
            if not hmac.compare_digest(said.get("rspauth", "").encode(), self._expected.encode()):
                raise IdentityRefused("the server does not know the delegation token", hint=self.refused)
            self.complete = True
            return b""
        offered = [each.strip() for each in said.get("qop", "auth").split(",")]
        known = sum(_QUALITIES[each] for each in offered if each in _QUALITIES)
        quality = strongest(known, self._least)
        if quality is Quality.PRIVACY and CIPHER not in said.get("cipher", ""):
            raise IdentityRefused(f"the server does not support the cipher {CIPHER} of DIGEST-MD5")
        return self._response(said, quality).encode()

    def _response(self, said: dict[str, str], quality: Quality) -> str:
        qop = next(word for word, each in _QUALITIES.items() if each is quality)
        reply = replied({"realm": REALM, **said}, self._user, self._password, DIGEST_URI, qop)
        self._expected = reply.expected
        private = quality is Quality.PRIVACY
        self._layer = Unlayered() if quality is Quality.AUTHENTICATION else DigestLayer(reply.session, private)
        return reply.message


def credentials_of(token: str) -> tuple[str, str]:
    """Returns user and password of a delegation token in Hadoop's URL encoding. Raises ConfigError without its text."""
    try:
        data = base64.urlsafe_b64decode(token.strip() + "=" * (-len(token.strip()) % 4))
        identifier, rest = counted(data)
        password, _ = counted(rest)
        if not identifier or not password:
            raise ValueError
    except (binascii.Error, ValueError, IndexError):
        raise ConfigError(
            "token: not a delegation token in Hadoop's URL encoding", hint="see docs/configuration.md"
        ) from None
    return base64.b64encode(identifier).decode(), base64.b64encode(password).decode()


def counted(data: bytes) -> tuple[bytes, bytes]:
    """Returns bytes after their length, and the rest. Hadoop writes a length up to 127 as a byte, others after their
    size."""
    first = data[0]
    if first < 128:
        size, begin = first, 1
    elif 136 <= first < 144:  # 0x8f: one byte follows, 0x8e: two...
        begin = 1 + 144 - first
        size = int.from_bytes(data[1:begin], "big")
    else:
        raise ValueError(first)
    if len(data) < begin + size:
        raise ValueError(size)
    return data[begin : begin + size], data[begin + size :]
