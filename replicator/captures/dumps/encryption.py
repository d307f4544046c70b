"""Encryption of an archive with a key of the key file: AES-256-GCM in chunks, by the STREAM construction, as in age.

    replicator-encrypted-archive 1\\n   the magic line
    salt                               32 random bytes
    chunks                             64 KiB of the archive each (the last: 0 to 64 KiB), encrypted; a tag of 16 bytes

The key of an archive is HKDF-SHA256 of the secret, with the salt, and the magic line as info. The nonce of a chunk is
its number (11 bytes, big-endian), then 1 for the last chunk, 0 for others. So no chunk can be changed, moved or left
out, nor the end cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

from replicator.captures.dumps.layout import Keys
from replicator.errors import FormatError, Refused, UsageError

MAGIC = b"replicator-encrypted-archive 1\n"
SALT = 32
CHUNK = 1 << 16
TAG = 16


class EncryptedWriter:
    """A stream that encrypts what is written to another. `close` writes the last chunk, and does not close the other:
    without it the archive is cut off."""

    def __init__(self, target: BinaryIO, keys: Keys) -> None:
        salt = os.urandom(SALT)
        self._target, self._cipher, self._number = target, _cipher(keys.secrets[0], salt), 0
        self._waiting = bytearray()
        target.write(MAGIC + salt)

    def write(self, data: bytes) -> None:
        """Encrypts bytes, except the last 64 KiB, which wait."""
        self._waiting += data
        while len(self._waiting) > CHUNK:
            self._put(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]

    def close(self) -> None:
        """Writes the last chunk."""
        self._put(bytes(self._waiting), last=True)
        self._waiting.clear()

    def _put(self, data: bytes, *, last: bool) -> None:
        self._target.write(self._cipher.encrypt(_nonce(self._number, last=last), data, None))
        self._number += 1


class DecryptedReader:
    """A stream of the decrypted bytes of another, which begins after the magic line. Only bytes whose tag is right are
    returned. Raises Refused if none of the keys has encrypted it, FormatError where it is changed or cut off."""

    def __init__(self, source: Callable[[int], bytes], keys: Keys, name: str) -> None:
        """source: reads exactly so many bytes, fewer only at the end. name: of the archive, for messages."""
        self._source, self._name, self._number = source, name, 0
        salt = source(SALT)
        self._ahead = source(CHUNK + TAG)
        self._plain = b""
        self._at, self._over = 0, False
        self._cipher = self._matching(keys, salt)

    def _matching(self, keys: Keys, salt: bytes) -> Any:
        """Returns the cipher of the key that decrypts the first chunk, which it decrypts."""
        following = self._source(CHUNK + TAG)
        for secret in keys.secrets:
            cipher = _cipher(secret, salt)
            if self._opened(cipher, following):
                return cipher
        raise Refused(
            f"{self._name}: none of the keys in {keys.file} has encrypted it, or its beginning is damaged",
            hint="give the key file of the host that exported it",
        )

    def _opened(self, cipher: Any, following: bytes) -> bool:
        from cryptography.exceptions import InvalidTag

        try:
            self._plain = cipher.decrypt(_nonce(self._number, last=not following), self._ahead, None)
        except InvalidTag:
            return False
        self._at, self._number, self._ahead, self._over = 0, self._number + 1, following, not following
        return True

    def read(self, size: int) -> bytes:
        """Returns at most so many bytes; none only at the end."""
        used = self._at == len(self._plain) and not self._over
        if used and not self._opened(self._cipher, self._source(CHUNK + TAG)):
            raise FormatError(f"{self._name}: is damaged, changed or cut off", hint="copy it again")
        data = self._plain[self._at : self._at + size]
        self._at += len(data)
        return data


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _cipher(secret: bytes, salt: bytes) -> Any:
    """Returns the cipher of an archive. Raises UsageError if the library is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ModuleNotFoundError as error:
        hint = "pip install 'replicator[encryption]'"
        raise UsageError(f"encryption needs {error.name}, which is not installed", hint=hint) from error
    return AESGCM(HKDF(SHA256(), 32, salt, MAGIC).derive(secret))
