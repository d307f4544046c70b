r"""Local users of Kerberos principals: Hadoop's rules (`hadoop.security.auth_to_local`). Pure.

RULE:[2:$1@$0](rm@EXAMPLE\.COM)s/.*/yarn/
DEFAULT
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from dataclasses import dataclass

from replicator.captures.gateways.messages import EXCEPTION, PROTOCOL_ERROR, Garbage, application_error, parse_header
from replicator.errors import ConfigError
from replicator.metastore.transport import Status, frame, message

_PRINCIPAL = re.compile(r"([^/@]+)(?:/([^/@]+))?@([^/@]+)")
_USER = re.compile(r"[\w.$-]+", re.ASCII)
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:\[(?P<parts>[12]):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<lower>L)?)(?=\s|$)"
)
_NESTED = re.compile(r"\[[^\]]*(?:\[|&&)")
_WHERE = re.compile(r"\$(\d)")
_HINT = "write the value of hadoop.security.auth_to_local: RULE:[1:$1@$0](.*@REALM)s/@.*// or DEFAULT, one per line"


class NoLocalUser(Exception):
    """Raised if no rule maps a principal to a local user. The reason is for the log and the client."""


@dataclass(frozen=True)
class Rule:
    """A rule. match None: any; old None: nothing is replaced."""

    default: bool
    parts: int = 0
    format: str = ""
    match: re.Pattern[str] | None = None
    old: re.Pattern[str] | None = None
    new: str = ""
    everywhere: bool = False
    lower: bool = False


@dataclass(frozen=True)
class LocalNames:
    """The mapping of principals to local users. realms: those whose principals are accepted. Without rules, the first
    part of a principal is the user; among rules, DEFAULT applies only to `own`, the gateway's realm."""

    own: str
    realms: Collection[str]
    rules: tuple[Rule, ...] = ()

    def user(self, principal: str) -> str:
        """Returns the user by the first rule that matches. Raises NoLocalUser."""
        parts = _PRINCIPAL.fullmatch(principal)
        if parts is None or "\\" in principal or parts[1] == "WELLKNOWN":
            raise NoLocalUser(f"{principal} is not the principal of a user")
        if parts[3] not in self.realms:
            raise NoLocalUser(f"the realm of {principal} is not one of {', '.join(sorted(self.realms))}")
        user = self._first(parts) if self.rules else parts[1]
        if user is None:
            raise NoLocalUser(f"no rule of auth_to_local in [gateway] matches {principal}")
        if not _USER.fullmatch(user):
            raise NoLocalUser(f"{principal} maps to {user[:100]!r}, which is not a valid user name")
        return user

    def named(self, name: str) -> str:
        """Returns the user for a name written by a client: a name without a realm belongs to `own`, a user's name is
        returned unchanged. Raises NoLocalUser."""
        if _USER.fullmatch(name):
            return name
        return self.user(name if "@" in name else f"{name}@{self.own}")

    def _first(self, parts: re.Match[str]) -> str | None:
        for rule in self.rules:
            found = _applied(rule, parts, self.own)
            if found is not None:
                return found
        return None


def _applied(rule: Rule, parts: re.Match[str], own: str) -> str | None:
    if rule.default:
        return parts[1] if parts[3] == own else None
    if rule.parts != (1 if parts[2] is None else 2):
        return None
    words = {"0": parts[3], "1": parts[1], "2": parts[2] or ""}
    base = _WHERE.sub(lambda found: words[found[1]], rule.format)
    if rule.match is not None and not rule.match.fullmatch(base):
        return None
    if rule.old is not None:
        base = rule.old.sub(lambda _: rule.new, base, count=0 if rule.everywhere else 1)
    return base.lower() if rule.lower else base


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parses rules. Raises ConfigError for an invalid rule, because applying only some of the rules could accept users
    that the others exclude."""
    rules: list[Rule] = []
    at = 0
    while text[at:].strip():
        found = _RULE.match(text, at)
        if found is None:
            raise ConfigError(f"gateway.auth_to_local: not a rule: {text[at:].strip()[:80]!r}", hint=_HINT)
        rules.append(_rule(found))
        at = found.end()
    if not rules:
        raise ConfigError("gateway.auth_to_local: contains no rule", hint=_HINT)
    return tuple(rules)


def _rule(found: re.Match[str]) -> Rule:
    if found["default"]:
        return Rule(True)
    parts, what = int(found["parts"]), found[0].strip()
    if any(int(number) > parts for number in _WHERE.findall(found["format"])):
        raise ConfigError(f"gateway.auth_to_local: {what}: its principal has only {parts} parts", hint=_HINT)
    if "$" in (found["new"] or "") or "\\" in (found["new"] or ""):
        raise ConfigError(f"gateway.auth_to_local: {what}: groups in a replacement are not supported", hint=_HINT)
    match, old = (None if each is None else _pattern(each, what) for each in (found["match"], found["old"]))
    return Rule(False, parts, found["format"], match, old, found["new"] or "", bool(found["all"]), bool(found["lower"]))


def _pattern(text: str, rule: str) -> re.Pattern[str]:
    if _NESTED.search(text):
        raise ConfigError(f"gateway.auth_to_local: {rule}: nested character sets are not supported", hint=_HINT)
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ConfigError(f"gateway.auth_to_local: {rule}: {error}", hint=_HINT) from None


# ---- foreign ---------------------------------------------------------------------------------------------------------
# Clients that use an unexpected protocol: a guess of the protocol, and a refusal in it.


_BINARY = b"\x80\x01"
_COMPACT = 0x82
_ALERT = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""TLS alert: handshake failure."""


def speaks_tls(begin: bytes) -> bool:
    return begin[:2] == b"\x16\x03"


def speaks_sasl(begin: bytes) -> bool:
    return begin[0] == Status.START and begin[1] == 0


def guess(begin: bytes) -> str:
    """Returns a guess, in brackets, of the protocol of unexpected first bytes."""
    if begin[:1] == b"\x16":
        return " (TLS?)"
    if begin[:1] in (b"\x01", b"\x02") and len(begin) > 4 and begin[1:3] == b"\0\0":
        return " (SASL or Kerberos?)"
    if begin[:1].isalpha() and begin.isascii():
        return " (HTTP?)"
    if begin[4:6] == _BINARY:
        return " (framed transport?)"
    if begin[:1] == bytes([_COMPACT]):
        return " (compact protocol?)"
    return ""


def in_their_words(begin: bytes, why: str) -> bytes:
    """Returns a refusal in the protocol of these first bytes; empty for an unknown one."""
    if speaks_tls(begin):
        return _ALERT
    if speaks_sasl(begin):
        return message(Status.BAD, why.encode())
    if begin[:2] == _BINARY:
        return _error(begin, why)
    if begin[4:6] == _BINARY:
        return frame(_error(begin[4:], why))
    if begin[:1] == bytes([_COMPACT]):
        return _compact_error(begin, why)
    if begin[:1].isalpha() and begin[:4].isascii():
        text = why.encode() + b"\n"
        head = "HTTP/1.1 501 Not Implemented\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text
    return b""


def _error(begin: bytes, why: str) -> bytes:
    try:
        header = parse_header(begin)
    except (Garbage, struct.error):
        header = None
    return application_error(header, PROTOCOL_ERROR, why)


def _compact_error(begin: bytes, why: str) -> bytes:
    """Returns a TApplicationException of the compact protocol, with the call's number and name if available."""
    text, at = why.encode(), 2
    while at < len(begin) and begin[at] & 0x80:
        at += 1
    number, rest = begin[2 : at + 1], begin[at + 1 :]
    named = number + rest[: rest[0] + 1] if rest and len(rest) > rest[0] else b"\0\0"
    error = b"\x18" + _varint(len(text)) + text + b"\x15" + _varint(2 * PROTOCOL_ERROR) + b"\0"
    return bytes((_COMPACT, EXCEPTION << 5 | 1)) + named + error


def _varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])
