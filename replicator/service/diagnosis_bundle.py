"""The file of a diagnosis: parts, each created separately, masked, and written into one archive. Masking replaces known
secrets in every encoding, and values next to names under which tools write secrets."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import msgspec
import msgspec.inspect

from replicator.core.not_replicated import Report
from replicator.errors import Error, Refused

# ---- masking ---------------------------------------------------------------------------------------------------------
# Masking: secrets leave a text or value before it is written. Those that are known by value go in every spelling,
# others by the names that they stand under and by the places where tools write them.


MASKED = "***"
SHORTEST = 4
"""Characters: a shorter secret would match parts of many words."""

_NAMES = r"pass(?:word|wd|phrase)|secret|token|credential|jwt|cookie|authorization|signature"
_NAMES += r"|(?:api|access|account|private|shared|signing|encryption)[-_.]?key"
SECRET_NAME = re.compile(rf"{_NAMES}|^sas$|[._]sas[._]", re.IGNORECASE)
"""Names of keys and variables whose value is a secret. Names of files and switches are not: see NO_SECRET."""

NO_SECRET = re.compile(r"(?:file|path|keytab|dir|principal|name|provider|class|user|require_token|by)$", re.IGNORECASE)

ACCOUNTS = re.compile(r"account\.key\.|[._]sas\.", re.IGNORECASE)
"""Names that end with that of an account or a container, which may be any word."""

_KEY_ID = r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"

_PATTERNS = (
    (re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@'\":]*:[^\s@'\"]*@"), rf"\1{MASKED}@"),  # a password may have slashes
    (re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@'\"]*@"), rf"\1{MASKED}@"),  # user and password in a URL
    (re.compile(r"(jdbc:oracle:\w+:)[^\s@'\"]+@"), rf"\1{MASKED}@"),
    (re.compile(r"\brpl_[\w-]{16,}"), MASKED),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"), MASKED),  # JSON web tokens
    (
        re.compile(rf"{_KEY_ID}([^\w\n]{{1,20}}(?:\w{{1,30}}[^\w\n]{{1,5}})?)[A-Za-z0-9/+=]{{40}}"),
        rf"{MASKED}\1{MASKED}",
    ),
    (re.compile(_KEY_ID), MASKED),
    (
        re.compile(rf"(<name>[^<]*(?:{_NAMES})[^<]*</name>\s*(?:<!--.*?-->\s*)?<value>)[^<]*", re.I | re.S),
        rf"\1{MASKED}",
    ),
    (re.compile(rf"<value>[^<]*(</value>\s*<name>[^<]*(?:{_NAMES}))", re.I), rf"<value>{MASKED}\1"),
    (re.compile(rf"(name=\"[^\"]*(?:{_NAMES})[^\"]*\"\s+value=\")[^\"]*", re.I), rf"\1{MASKED}"),
    (re.compile(r"(\b(?:mysql\w*|mariadb[\w-]*|sshpass)\b[^\n]*?\s-p\s?)(?!\s|-)\S+"), rf"\1{MASKED}"),
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
        """secrets: known values; those shorter than SHORTEST are not searched for."""
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
        """Returns the value without secrets; the keys of mappings indicate which texts are secret."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.named(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(each) for each in value]
        return value if isinstance(value, int | float | bool) or value is None else self.text(str(value))

    def named(self, name: str, value: Any) -> Any:
        """Masks a value by the name of its key."""
        if is_secret_name(name) and isinstance(value, str) and value:
            return reference_text(value) or MASKED
        return self.value(value)


def is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and bool(ACCOUNTS.search(name) or not NO_SECRET.search(name))


def reference_text(text: str) -> str:
    """Returns a reference to a secret as it may be shown: of a command its program only; "" for text that is not a
    reference."""
    kind, _, place = text.partition(":")
    if kind in ("file", "env") and place:
        return text
    return f"command:{place.split()[0]} {MASKED}" if kind == "command" and place.strip() else ""


def address_text(url: str) -> str:
    """Returns the host of a URL whose path may be a secret, such as a webhook's."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}/{MASKED}"


def _spellings(secret: str) -> Iterable[str]:
    """Returns a secret's encodings: unchanged, in URLs, as hexadecimal digits, as base64, and in JSON."""
    data = secret.encode(errors="surrogateescape")
    encoded = base64.b64encode(data).decode().rstrip("=")
    return secret, quote(secret), quote(secret, safe=""), data.hex(), encoded, secret.replace("\\", "\\\\")


# ---- bundle ----------------------------------------------------------------------------------------------------------
# The bundle: parts, each created separately, masked, and written into one archive, which names those that failed.


LARGEST = 4 << 20
"""Maximum bytes of one part. A larger one is truncated, with a note."""


class MissingPart(msgspec.Struct, frozen=True):
    """part: its name in the bundle. error, hint: why it could not be had."""

    part: str
    error: str
    hint: str = ""


class Bundle:
    """Parts by their names. `missing`: parts that could not be obtained, or only incompletely."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self.parts: dict[str, bytes] = {}
        self.missing: list[MissingPart] = []

    def add(self, name: str, make: Callable[[], Any]) -> Any:
        """Adds the result of `make`, as JSON, or unchanged if it is text. A failure is part of the diagnosis: it is
        recorded, and None is returned."""
        try:
            made = make()
        except Exception as error:
            self.miss(name, error)
            return None
        if isinstance(made, str):
            data = self.mask.text(made).encode(errors="backslashreplace")
        else:
            value = made.to_dict() if isinstance(made, Report) else msgspec.to_builtins(made, str_keys=True)
            data = json.dumps(self.mask.value(value), indent=1, ensure_ascii=False).encode(errors="backslashreplace")
        if len(data) > LARGEST:
            self.lack(name, f"is cut after {LARGEST} of its {len(data)} bytes")
        self.parts[name] = data[:LARGEST]
        return made

    def miss(self, name: str, error: Exception) -> None:
        said = error.message if isinstance(error, Error) else str(error) or type(error).__name__
        hint = error.hint if isinstance(error, Error) else ""
        kind = type(error).__name__
        self.missing.append(MissingPart(name, self.mask.text(f"{kind}: {said}"), self.mask.text(hint or "")))

    def lack(self, name: str, text: str) -> None:
        self.missing.append(MissingPart(name, self.mask.text(text)))

    def write(self, path: Path, made: float, *, overwrite: bool) -> int:
        """Writes a tar.gz that only its owner may read, completely or not at all. Returns its size in bytes. made:
        seconds since 1970. Raises Refused for an existing file without `overwrite`; OSError."""
        path = path.absolute()
        handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                self._pack(file, path.name.partition(".")[0], made)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            if overwrite:
                os.replace(staged, path)
            else:
                os.link(staged, path)  # the name appears with all its bytes, for one caller only
        except FileExistsError:
            raise _there(path) from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        return size

    def _pack(self, to: BinaryIO, directory: str, made: float) -> None:
        with (
            gzip.GzipFile(fileobj=to, mode="wb", filename="", mtime=made) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, data in sorted(self.parts.items()):
                entry = tarfile.TarInfo(f"{directory}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(made), 0o600
                archive.addfile(entry, io.BytesIO(data))


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raises Refused."""
    if os.path.lexists(path) and not overwrite:
        raise _there(path)


def _there(path: Path) -> Refused:
    return Refused(f"{path} already exists", hint="choose another --out, or give --overwrite")
