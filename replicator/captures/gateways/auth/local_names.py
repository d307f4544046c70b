r"""Local users of Kerberos principals: Hadoop's rules (`hadoop.security.auth_to_local`). Pure.

RULE:[2:$1@$0](rm@EXAMPLE\.COM)s/.*/yarn/
DEFAULT
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from replicator.errors import ConfigError

_PRINCIPAL = re.compile(r"([^/@]+)(?:/([^/@]+))?@([^/@]+)")
_USER = re.compile(r"[\w.$-]+", re.ASCII)
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:\[(?P<parts>[12]):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<lower>L)?)(?=\s|$)"
)
_NESTED = re.compile(r"\[[^\]]*(?:\[|&&)")
_WHERE = re.compile(r"\$(\d)")
_HINT = "write the value of hadoop.security.auth_to_local: RULE:[1:$1@$0](.*@REALM)s/@.*// or DEFAULT, one a line"


class NoLocalUser(Exception):
    """No rule makes a local user of a principal; why, for the log and the client."""


@dataclass(frozen=True)
class Rule:
    """match None: any; old None: nothing is replaced."""

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
    """realms: whose principals are let in at all. Without rules the first part of theirs is the user; among rules,
    DEFAULT knows `own` only, the gateway's realm."""

    own: str
    realms: Collection[str]
    rules: tuple[Rule, ...] = ()

    def user(self, principal: str) -> str:
        """By the first rule that fits. Raises NoLocalUser."""
        parts = _PRINCIPAL.fullmatch(principal)
        if parts is None or "\\" in principal or parts[1] == "WELLKNOWN":
            raise NoLocalUser(f"{principal} is nobody's principal")
        if parts[3] not in self.realms:
            raise NoLocalUser(f"{principal} is of another realm than {', '.join(sorted(self.realms))}")
        user = self._first(parts) if self.rules else parts[1]
        if user is None:
            raise NoLocalUser(f"{principal} has no rule in auth_to_local of [gateway]")
        if not _USER.fullmatch(user):
            raise NoLocalUser(f"{principal} becomes {user[:100]!r}, which is no user's name")
        return user

    def named(self, name: str) -> str:
        """The same of what a client writes: a name without a realm is of `own`, a user's is itself. Raises
        NoLocalUser."""
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
    """Raises ConfigError for a rule that is not understood: a part of the rules would let in whom the others keep
    out."""
    rules: list[Rule] = []
    at = 0
    while text[at:].strip():
        found = _RULE.match(text, at)
        if found is None:
            raise ConfigError(f"gateway.auth_to_local: not a rule: {text[at:].strip()[:80]!r}", hint=_HINT)
        rules.append(_rule(found))
        at = found.end()
    if not rules:
        raise ConfigError("gateway.auth_to_local: no rule", hint=_HINT)
    return tuple(rules)


def _rule(found: re.Match[str]) -> Rule:
    if found["default"]:
        return Rule(True)
    parts, what = int(found["parts"]), found[0].strip()
    if any(int(number) > parts for number in _WHERE.findall(found["format"])):
        raise ConfigError(f"gateway.auth_to_local: {what}: it has {parts} parts", hint=_HINT)
    if "$" in (found["new"] or "") or "\\" in (found["new"] or ""):
        raise ConfigError(f"gateway.auth_to_local: {what}: groups in a replacement are not understood", hint=_HINT)
    match, old = (None if each is None else _pattern(each, what) for each in (found["match"], found["old"]))
    return Rule(False, parts, found["format"], match, old, found["new"] or "", bool(found["all"]), bool(found["lower"]))


def _pattern(text: str, rule: str) -> re.Pattern[str]:
    if _NESTED.search(text):
        raise ConfigError(f"gateway.auth_to_local: {rule}: sets within sets are not understood", hint=_HINT)
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ConfigError(f"gateway.auth_to_local: {rule}: {error}", hint=_HINT) from None
