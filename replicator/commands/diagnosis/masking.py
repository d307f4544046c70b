"""Masking: secrets leave a text or value before it is written. Those that are known by value go in every spelling,
others by the names that they stand under and by the places where tools write them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

MASKED = "***"
SHORTEST = 4
"""Characters: a shorter secret would be found in half of all words."""

_NAMES = r"pass(?:word|wd|phrase)|secret|token|credential|jwt|cookie|authorization|signature"
_NAMES += r"|(?:api|access|account|private|shared|signing|encryption)[-_.]?key"
SECRET_NAME = re.compile(rf"{_NAMES}|^sas$|[._]sas[._]", re.IGNORECASE)
"""Of a key or variable whose value is one. Names of files and of switches are none: see NO_SECRET."""

NO_SECRET = re.compile(r"(?:file|path|keytab|dir|principal|name|provider|class|user|require_token|by)$", re.IGNORECASE)

ACCOUNTS = re.compile(r"account\.key\.|[._]sas\.", re.IGNORECASE)
"""Of names that end with an account's or a container's, which may be any word."""

_PATTERNS = (
    (re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@'\"]*@"), rf"\1{MASKED}@"),  # user and password in a URL
    (re.compile(r"\b((?:Bearer|Basic|Negotiate)\s+)[\w.~+/=-]{8,}"), rf"\1{MASKED}"),
    (re.compile(rf"((?:{_NAMES})[\w.-]*[\"']?\s*[=:]\s*([\"']))(?:(?!\2).)*(?=\2)", re.I), rf"\1{MASKED}"),
    (re.compile(rf"((?:{_NAMES})[\w.-]*(?:\s*[=:]\s*))(?!file:|env:|command:)[^\s\"'&;,)]+", re.I), rf"\1{MASKED}"),
    (re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)(?!file:|env:|command:|-)\S+", re.I), rf"\1{MASKED}"),
    (re.compile(r"([?&](?:sig|X-Amz-[A-Za-z]+|AWSAccessKeyId)=)[^&\s\"']+", re.IGNORECASE), rf"\1{MASKED}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASKED),
)


class Mask:
    """Takes secrets out of texts, and of values of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """secrets: known by their values; those shorter than SHORTEST are not looked for."""
        spelled = {each for secret in secrets if len(secret) >= SHORTEST for each in _spellings(secret)}
        longest_first = sorted(spelled, key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASKED, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def value(self, value: Any) -> Any:
        """The same without secrets; keys of mappings tell which texts are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.named(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(each) for each in value]
        return value if isinstance(value, int | float | bool) or value is None else self.text(str(value))

    def named(self, name: str, value: Any) -> Any:
        """A value by the name that it stands under."""
        if is_secret_name(name) and isinstance(value, str) and value:
            return reference_text(value) or MASKED
        return self.value(value)


def is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and bool(ACCOUNTS.search(name) or not NO_SECRET.search(name))


def reference_text(text: str) -> str:
    """A reference to a secret as it may be shown: of a command its program only; "" for a text that is none."""
    kind, _, place = text.partition(":")
    if kind in ("file", "env") and place:
        return text
    return f"command:{place.split()[0]} {MASKED}" if kind == "command" and place.strip() else ""


def address_text(url: str) -> str:
    """Of a URL whose path may be a secret, as a webhook's: where it leads."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}/{MASKED}"


def _spellings(secret: str) -> Iterable[str]:
    """As it is, in URLs, as hexadecimal digits, as base64, and as JSON has it."""
    data = secret.encode(errors="surrogateescape")
    encoded = base64.b64encode(data).decode().rstrip("=")
    return secret, quote(secret), quote(secret, safe=""), data.hex(), encoded, secret.replace("\\", "\\\\")
