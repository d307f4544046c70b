"""Archives: a dump with data as one tar file, to be carried by hand, and back; encrypted with a key of the key file.

An archive has regular files only, `_dumpmetadata` first and `_finished_dump` last, each with the size that its name or
the description requires. So its headers are read here one by one, and anything else is refused before it is written: a
file from elsewhere cannot lead outside of the directory, and no header can claim memory.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import xxhash

from cmroot.errors import ChecksumMismatch
from cmroot.keep.content import content_name
from cmroot.log.segment import Marker, PartsReader
from cmroot.store.checksum import FLOW
from cmroot.store.place import Place, as_written, join
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import DATA, FINISHED, METADATA, SIGNATURE, DumpReader, Keys, check_parts, signed
from replicator.captures.dumps.writer import leave, make_room
from replicator.core.not_replicated import Report
from replicator.core.runtime import Progress
from replicator.errors import FormatError, Refused, UsageError

# ---- encryption ------------------------------------------------------------------------------------------------------
# AES-256-GCM in chunks of 64 KiB, by the STREAM construction, as in age: no chunk can be changed, moved or left out,
# nor the end cut off. Decision 23 has the format.


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


BLOCK = 1 << 20
MOST = {METADATA: 1 << 28, SIGNATURE: 1 << 28, FINISHED: 1 << 16}
"""Sizes that files without a recorded size may have, in bytes."""

_PART = re.compile(
    r"_metadata/(records|contents)-\d{5}\.jsonl\.gz|_metadata/tables\.jsonl\.gz|_files/bucket-\d{4}\.parquet"
)
_CONTENT = re.compile(r"_data/files/([0-9a-f]{2})/xxh3_128-(([0-9a-f]{2})[0-9a-f]{30})-(0|[1-9]\d{0,17})")
_HINT = "import only what `replicator dumps export` wrote, as it was written"


@dataclass
class Archived(Report):
    """The result of an export or import: the dump's directory, the archive, contents and bytes of data in it.
    `earlier`: dumps of its chain that it refers to, which need archives of their own."""

    status: str
    dump: str
    archive: str
    files: int
    bytes: int
    encrypted: bool
    earlier: list[str]


# ---- export ----------------------------------------------------------------------------------------------------------


def export_dump(
    reader: DumpReader, archive: str, progress: Progress, *, overwrite: bool = False, encrypt: Keys | None = None
) -> Archived:
    """Writes a dump with data as a tar file, which exists only when it is complete. Compares every byte with its
    checksum. encrypt: with the first of these keys. Raises UsageError for a dump without data, and for an existing
    file; ChecksumMismatch for damaged data."""
    data, file = reader.metadata.data, as_written(archive)
    if data is None:
        raise UsageError(f"{reader.place}: has no data", hint="write it with `replicator dump --with-data`")
    if file.exists() and not overwrite:
        raise UsageError(f"{file} exists", hint="choose another name, or give --overwrite")
    reader.verify()
    with progress.task("export", files=data.files, size=data.bytes) as advance, file.open_write() as target:
        stream = target if encrypt is None else EncryptedWriter(target, encrypt)
        for name, size, checksum in _members(reader):
            _write(stream, reader.place, name, size, checksum)
            if checksum and name.startswith(DATA):
                advance(0, files=1, size=size)
        stream.write(bytes(2 * tarfile.BLOCKSIZE))
        if isinstance(stream, EncryptedWriter):
            stream.close()
    return _archived("exported", reader, str(file), encrypted=encrypt is not None)


def _archived(status: str, reader: DumpReader, archive: str, *, encrypted: bool) -> Archived:
    data = reader.metadata.data
    assert data is not None
    earlier = [each.place for each in data.earlier] if data.referenced else []
    return Archived(status, reader.place, archive, data.files, data.bytes, encrypted, earlier)


def _members(reader: DumpReader) -> Iterator[tuple[str, int, str]]:
    """Yields the name, the size and the checksum ("": none is recorded) of each file of a dump, in order."""
    here = Place(reader.place)
    for name in (METADATA, SIGNATURE):
        if (here / name).exists():
            yield name, (here / name).size(), ""
    for part in reader.parts:
        yield part.name, part.size, part.xxh3_128
    for each in reader.contents():
        if not each.dump:
            name = content_name(each.checksum, each.size)
            yield f"{DATA}/files/{each.checksum[:2]}/{name}", each.size, each.checksum
    yield FINISHED, (here / FINISHED).size(), ""


def _write(stream: BinaryIO | EncryptedWriter, place: str, name: str, size: int, checksum: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    stream.write(info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict"))
    try:
        with (Place(place) / name).open_stream() as source:
            found = _copy(source, stream.write, size)
            more = source.read(1)
    except FileNotFoundError as error:
        raise ChecksumMismatch(f"{join(place, name)}: is missing", hint="restore it from a copy") from error
    if found[1] != size or more or (checksum and found[0] != checksum):
        raise ChecksumMismatch(
            f"{join(place, name)}: is damaged", hint="`replicator dumps verify` names all such files"
        )
    stream.write(bytes(-size % tarfile.BLOCKSIZE))


def _copy(source: Readable, write: Callable[[bytes], object], size: int) -> tuple[str, int]:
    """Copies at most so many bytes. Returns their checksum and number."""
    digest, count = xxhash.xxh3_128(), 0
    while count < size and (block := source.read(min(BLOCK, size - count))):
        digest.update(block)
        FLOW.passed(len(block))
        write(block)
        count += len(block)
    return digest.hexdigest(), count


# ---- import ----------------------------------------------------------------------------------------------------------


def import_dump(archive: str, out: str, keys: Keys | None, progress: Progress) -> Archived:
    """Writes the dump of an archive into a new directory. Every byte is compared with its checksum before a file gets
    its name, and the dump exists only when it is complete. A killed import is completed by the same call: existing
    bytes are not written again. Raises FormatError for anything that is not an archive of a dump, naming the member;
    Refused for a dump that none of the keys has signed or encrypted; UsageError if the directory is not empty."""
    file, place = as_written(archive), as_written(out)
    try:
        size, stream = file.size(), file.open_stream()
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist", hint="check the path") from None
    with stream, progress.task("import", size=size) as advance:
        plain, encrypted = _decrypted(stream, str(file), keys)
        lease = make_room(place, with_data=True)
        assert lease is not None
        with lease:
            (place / DATA).sweep(deep=True)
            incoming = _Import(str(file), place, advance)
            for name, length in _headers(plain, str(file)):
                incoming.take(name, length, plain)
                _skip(plain, -length % tarfile.BLOCKSIZE, str(file))
            done = incoming.finish(keys, lease.check, encrypted=encrypted)
        leave(place, lease)
        return done


def _decrypted(stream: BinaryIO, archive: str, keys: Keys | None) -> tuple[Readable, bool]:
    """Returns an archive's stream from its beginning, decrypted, and True if it is encrypted."""
    first = _exactly(stream, len(MAGIC))
    if first != MAGIC:
        return _Again(first, stream), False
    if keys is None:
        raise UsageError(f"{archive}: is encrypted", hint="give --key-file")
    return DecryptedReader(lambda size: _exactly(stream, size), keys, archive), True


class Readable(Protocol):
    """A stream that can be read forward."""

    def read(self, size: int, /) -> bytes: ...


class _Again:
    """A stream whose first bytes were read already."""

    def __init__(self, first: bytes, rest: BinaryIO) -> None:
        self._first, self._rest = first, rest

    def read(self, size: int, /) -> bytes:
        if not self._first:
            return self._rest.read(size)
        data, self._first = self._first[:size], self._first[size:]
        return data


def _headers(stream: Readable, archive: str) -> Iterator[tuple[str, int]]:
    """Yields the name and the size of each member, whose bytes must be read before the next. Raises FormatError for a
    member that is not a regular file."""
    while True:
        block = _exactly(stream, tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise FormatError(f"{archive}: is cut off", hint="copy it again")
        if not any(block):
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "surrogateescape")
        except tarfile.HeaderError as error:
            raise FormatError(f"{archive}: is not a tar file, or damaged: {error}", hint=_HINT) from error
        if info.type != tarfile.REGTYPE:
            raise FormatError(f"{archive}: member {info.name!r} is not a regular file", hint=_HINT)
        if info.size < 0:
            raise FormatError(f"{archive}: member {info.name!r} has a negative size", hint=_HINT)
        yield info.name, info.size


def _exactly(stream: Readable, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


def _skip(stream: Readable, size: int, archive: str) -> None:
    if _copy(stream, len, size)[1] != size:
        raise FormatError(f"{archive}: is cut off", hint="copy it again")


class _Import:
    """A dump that is being imported."""

    def __init__(self, archive: str, place: Place, advance: Callable[..., None]) -> None:
        self._archive, self._place, self._advance = archive, place, advance
        self._parts: PartsReader | None = None
        self._taken: set[str] = set()  # all but contents
        self._contents = 0
        self._finished = b""

    def take(self, name: str, size: int, stream: Readable) -> None:
        """Writes one member. Raises FormatError if it does not belong there."""
        if self._finished:
            raise self._wrong(name, f"follows {FINISHED}")
        if content := _CONTENT.fullmatch(name):
            self._take_content(name, size, stream, content)
            return
        if name in self._taken:
            raise self._wrong(name, "is there twice")
        self._taken.add(name)
        if name in MOST:
            self._take_own(name, size, stream)
            return
        part = next((each for each in self._listed.parts if each.name == name), None)
        if part is None or not _PART.fullmatch(name):
            raise self._wrong(name, "does not belong to a dump")
        if part.size != size:
            raise self._wrong(name, f"has {size} bytes, but {part.size} according to {METADATA}")
        self._write(name, size, stream, part.xxh3_128)

    @property
    def _listed(self) -> Marker:
        if self._parts is None:
            raise FormatError(f"{self._archive}: does not begin with {METADATA}", hint=_HINT)
        return self._parts.marker

    def _take_content(self, name: str, size: int, stream: Readable, content: re.Match[str]) -> None:
        above, checksum, begins, length = content.groups()
        if above != begins or int(length) != size:
            raise self._wrong(name, f"has {size} bytes, or is in another directory than its name requires")
        assert self._listed
        self._contents += 1
        target = self._place / name
        if target.exists() and target.size() == size:
            _skip(stream, size, self._archive)
        else:
            self._write(name, size, stream, checksum)
        self._advance(0, files=1, size=size)

    def _take_own(self, name: str, size: int, stream: Readable) -> None:
        if size > MOST[name]:
            raise self._wrong(name, f"has {size} bytes")
        if (self._parts is None) != (name == METADATA):
            raise self._wrong(name, f"is out of order: {METADATA} is the first")
        if name == FINISHED:
            self._finished = _exactly(stream, size)
            if len(self._finished) != size:
                raise FormatError(f"{self._archive}: is cut off", hint="copy it again")
            return
        self._write(name, size, stream, "")
        if name == METADATA:
            self._parts = PartsReader(str(self._place), METADATA, format=layout.FORMAT, version=layout.VERSION)

    def _write(self, name: str, size: int, stream: Readable, checksum: str) -> None:
        """Publishes a member's bytes if they are right."""
        with (self._place / name).open_write(durable=False) as target:
            found = _copy(stream, target.write, size)
            if found[1] != size:
                raise FormatError(f"{self._archive}: is cut off", hint="copy it again")
            if checksum and found[0] != checksum:
                raise self._wrong(name, "is damaged: its checksum is another")

    def finish(self, keys: Keys | None, check: Callable[[], None], *, encrypted: bool) -> Archived:
        """Makes all durable, checks the dump, and writes its marker last, unless `check` raises."""
        missing = {part.name for part in self._listed.parts} - self._taken
        if missing or not self._finished:
            raise FormatError(f"{self._archive}: lacks {min(missing, default=FINISHED)}", hint=_HINT)
        place = str(self._place)
        _, metadata = layout.parts_of(place, self._finished)
        if metadata.data is None or metadata.data.files != self._contents:
            raise FormatError(f"{self._archive}: has {self._contents} contents, but not as many as listed", hint=_HINT)
        if keys is not None:
            check_parts(place, (part.name for part in self._listed.parts), signed(place, metadata.id, METADATA, keys))
        self._place.sync()
        check()
        (self._place / FINISHED).write_bytes(self._finished)
        return _archived("imported", DumpReader(place, keys), self._archive, encrypted=encrypted)

    def _wrong(self, name: str, why: str) -> FormatError:
        return FormatError(f"{self._archive}: member {name!r} {why}", hint=_HINT)
