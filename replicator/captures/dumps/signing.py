"""Signatures of dumps: only who has the key has written them. docs/decisions/0009 says why this way.

    _signature   {"format": "replicator-dump-signature", "version": 1, "algorithm": "hmac-sha256", "mac": "...",
                  "body": {"dump": "<id>", "metadata": "<SHA-256>", "parts": {"<name>": "<SHA-256>"}}}

The body names the dump's id, and the SHA-256 of `_dumpmetadata` and of every part: the checksums beside them are fast
ones, against damage, and somebody who wants to can find other bytes that have them. The code is of the bytes of `body`
as they are in the file.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.log.parts import damaged
from cmroot.store.place import Place, join
from cmroot.store.spelling import naming
from replicator.errors import ConfigError, Refused

SIGNATURE = "_signature"
_FORMAT, _VERSION, _ALGORITHM = "replicator-dump-signature", 1, "hmac-sha256"
_SHORTEST = 32  # bytes of a key: those of SHA-256, below which RFC 2104 advises against
_BLOCK = 1 << 20


class _File(msgspec.Struct, frozen=True):
    format: str
    version: int
    algorithm: str
    mac: str
    body: msgspec.Raw


class Signed(msgspec.Struct, frozen=True):
    """What a signature vouches for: the dump's id, the SHA-256 of its `_dumpmetadata`, and of each part by name."""

    dump: str
    metadata: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Keys:
    """The first one signs, any of them verifies: so a key can be replaced while dumps of the old one are about."""

    file: str
    secrets: tuple[bytes, ...] = field(repr=False)


def read_keys(path: str) -> Keys:
    """The keys of a file, one a line. Raises ConfigError for one that cannot be read, that others may read, or that
    holds a key of fewer than 32 characters; never with a key in it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [line.strip() for line in file.read().splitlines()]
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}", hint="check dumps.key_file and its rights") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"key file {path}: others than its owner may use it", hint=f"chmod 600 {path}")
    secrets = tuple(line for line in lines if line)
    if not secrets or min(map(len, secrets)) < _SHORTEST:
        raise ConfigError(
            f"key file {path}: holds no key, or one of fewer than {_SHORTEST} characters",
            hint=f"make one: (umask 077; openssl rand -hex 32 > {path})",
        )
    return Keys(path, secrets)


def sign(place: str, dump: str, parts: Iterable[str], metadata: str, keys: Keys) -> None:
    """Writes the signature of a dump whose parts and `metadata` (its file's name) are written. Before the marker."""
    named = {name: _sha256(join(place, name)) for name in sorted(parts)}
    body = msgspec.json.encode(Signed(dump, _sha256(join(place, metadata)), named))
    file = _File(_FORMAT, _VERSION, _ALGORITHM, _mac(keys.secrets[0], body), msgspec.Raw(body))
    (Place(place) / SIGNATURE).write_bytes(msgspec.json.encode(file) + b"\n")


def signed(place: str, dump: str, metadata: str, keys: Keys) -> Signed:
    """What a dump's signature vouches for, its `metadata` looked at. Raises Refused for a dump without a signature,
    with one that no key made, or of another dump; FormatError for a damaged one."""
    path = join(place, SIGNATURE)
    try:
        file = msgspec.json.decode(Place(path).read_bytes(), type=_File)
        if (file.format, file.version, file.algorithm) != (_FORMAT, _VERSION, _ALGORITHM):
            raise damaged(path, f"is a {file.format} version {file.version} with {file.algorithm}")
        body = bytes(file.body)
        if not any(hmac.compare_digest(_mac(key, body).encode(), file.mac.encode()) for key in keys.secrets):
            raise _refused(place, f"its signature was made with none of the keys in {keys.file}")
        found = msgspec.json.decode(body, type=Signed)
    except FileNotFoundError:
        raise _refused(place, f"it is not signed, and the key file {keys.file} is configured") from None
    except UNREADABLE as error:
        raise damaged(path, f"cannot be read: {error}") from error
    if found.dump != dump:
        raise _refused(place, f"its signature is of the dump {found.dump}")
    if found.metadata != _sha256(join(place, metadata)):
        raise _refused(place, f"{metadata} is not the one that was signed")
    return found


def check_parts(place: str, parts: Iterable[str], found: Signed) -> None:
    """Reads every part. Raises Refused for one that is not as it was signed."""
    for name in parts:
        if found.parts.get(name) != _sha256(join(place, name)):
            raise _refused(place, f"{name} is not the one that was signed")


def _refused(place: str, what: str) -> Refused:
    return Refused(
        f"dump {place}: {what}",
        hint="take it anew from whoever signs dumps; a configuration without dumps.key_file loads unsigned ones",
    )


def _mac(secret: bytes, body: bytes) -> str:
    about = f"{_FORMAT} {_VERSION} {_ALGORITHM}\n".encode()
    return hmac.new(secret, about + body, "sha256").hexdigest()


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with naming(path), Place(path).open_read() as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
