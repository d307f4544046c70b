"""Copying of one file to the target: from the target's own `$cmroot`, else the source, else the source's `$cmroot`,
else the version that the source's bucket retains.

The bytes decide: a file is read once, hashed while read, read back, and gets its final name only if it equals what was
recorded (docs/design.md, invariant 4). Runs on executors; uses no metastore and no plan.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import msgspec

from cmroot.errors import KeepError
from cmroot.keep.content import ATTEMPTS, is_kept, locate
from cmroot.keep.keepers import Keeper, choose_keeper
from cmroot.keep.recycle import recycle
from cmroot.keep.remote_files import keep_and_check, refuse_changed
from cmroot.keep.versions import version_size
from cmroot.store.checksum import (
    BUFFER_SIZE,
    FLOW,
    checksum_at,
    checksum_descriptor,
    checksum_file,
    checksum_stream,
    copy_between,
    copy_stream,
)
from cmroot.store.hdfs import BY_RPC, SCHEMES, carry_attributes, gives_mode
from cmroot.store.place import (
    Place,
    give_rights,
    is_local,
    local_path,
    located,
    make_inheriting,
    parent,
    refuse_root,
    remote_store,
)
from cmroot.store.s3 import WHOLE
from cmroot.store.spelling import raise_named, scheme
from replicator.replay.apply.origins import Origin, Roots, Wanted, origins
from replicator.replay.apply.staging import Attempt, given_up, is_published, is_stamped, stamp

THREADS = 2  # per task: one waits for the disk while the other hashes
LARGE = 4 << 20  # mean size above which two are faster: with small files threads wait for the interpreter's lock
REQUESTS = 16  # threads to another store for files beyond FILE_COST; with small ones each waits for responses
FILE_COST = 256 * 1024  # a file's fixed cost, as the bytes that could be copied in that time


class Placed(msgspec.Struct, frozen=True, gc=False):
    """The source of a wanted file: `origin` is present (existed already), target (from the target's own `$cmroot`),
    source, cmroot (from there, or a version of the source's bucket), dump (from its own data), or missing, with the
    reason. lacking: rights of the replaced file that the new one does not have."""

    origin: str
    size: int = 0
    reason: str = ""
    lacking: str = ""


def kept_prefixes(root: str) -> frozenset[str]:
    """Returns the first two digits of the checksums of files in a `$cmroot`. Most targets retain none, so they need no
    query for every file."""
    return frozenset((Place(root) / "files").list())


@dataclass(frozen=True)
class Placing:
    """The way to place the files of a task. `kept`: prefixes for which the target's `$cmroot` is queried before the
    source; for others it is queried last. `reread`: files that seem right are read, as their bytes may have rotted.
    `private`, `preserve`: see CopyTask. `make`: creates the directory of a new file."""

    roots: Roots
    attempt: Attempt
    kept: frozenset[str]
    reread: bool = False
    private: bool = False
    preserve: Collection[str] = ()
    make: Callable[[str], object] = make_inheriting


def place_file(wanted: Wanted, how: Placing) -> Placed:
    """Makes the target file equal to the wanted one. May run twice, and twice at once: a right file is not changed,
    and only the very file that this attempt has written and read back gets the name. Raises LeaseHeld if the attempt
    was abandoned.
    The checksum decides; a file of the right size and time is not read if its stamp shows that a load has published
    these bytes."""
    if wanted.checksum is None or wanted.size is None:
        return Placed("missing", reason="it was dropped before capture could read it")
    if is_local(wanted.target):
        target = local_path(wanted.target)
        try:
            return _place_local(target, wanted, wanted.checksum, wanted.size, how)
        except OSError as error:
            raise_named(error, target)
    return _place_object(wanted, wanted.checksum, wanted.size, how)


def probe_file(wanted: Wanted, roots: Roots, *, in_place: bool = True) -> Placed:
    """Checks, by name and size, if a file's bytes are available; reads none of them. Used before anything is removed.
    `in_place`: a file at the target counts, too."""
    if wanted.checksum is None or wanted.size is None:
        return Placed("missing", reason="it was dropped before capture could read it")
    there = [wanted.target] if in_place else []
    kept = [locate(root, wanted.checksum, wanted.size) for root in roots.keeping]
    source = [] if roots.alone else [wanted.source]
    for place in (*(kept if roots.data else ()), *source, *kept, *there):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if located(place).size() == wanted.size:
                return Placed("present", wanted.size)
    if wanted.at_version and not roots.alone:
        with contextlib.suppress(FileNotFoundError):
            if version_size(*wanted.at_version) == wanted.size:
                return Placed("present", wanted.size)
    if is_kept(roots.target, wanted.checksum, wanted.size):
        return Placed("present", wanted.size)
    where = "not in the dump's data" if roots.alone else "neither at the source nor in $cmroot"
    return Placed("missing", reason=f"it is {where}")


def compare_file(wanted: Wanted, roots: Roots, *, reread: bool = False) -> Placed:
    """Returns what `place_file` would do, as far as can be determined without copying: present, missing, or the source
    of the bytes, by name and size. Changes nothing."""
    if wanted.checksum is not None and wanted.size is not None:
        if is_local(wanted.target):
            there = _status(local_path(wanted.target))
            if there is not None and there.st_size == wanted.size:
                path = local_path(wanted.target)
                trusted = not reread and there.st_mtime_ns == wanted.mtime_ns and is_stamped(path, wanted.checksum)
                if trusted or checksum_file(path) == (wanted.checksum, wanted.size):
                    return Placed("present", wanted.size)
        else:
            with contextlib.suppress(FileNotFoundError):
                right = (wanted.checksum, wanted.size)
                if located(wanted.target).size() == wanted.size and checksum_at(wanted.target) == right:
                    return Placed("present", wanted.size)
    if wanted.content is not None and wanted.size is not None:
        return Placed("source", wanted.size)
    found = probe_file(wanted, roots, in_place=False)
    if found.origin == "missing" or wanted.checksum is None or wanted.size is None:
        return found
    if is_kept(roots.target, wanted.checksum, wanted.size):
        return Placed("target", found.size)
    if any(is_kept(data, wanted.checksum, wanted.size) for data in roots.data):
        return Placed("dump", found.size)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if located(wanted.source).size() == wanted.size:
            return Placed("source", found.size)
    return Placed("cmroot", found.size)


def threads_of(mine: Sequence[Wanted]) -> int:
    """Returns the number of threads in which a task copies these files."""
    mean = sum(file.size or 0 for file in mine) / max(1, len(mine))
    remote = next((file.target for file in mine if not is_local(file.target)), None)
    at_once = Place(remote).store.at_once if remote is not None else 1
    if at_once == 1:
        return THREADS if mean > LARGE else 1
    return max(1, min(len(mine), at_once if mean <= FILE_COST else min(at_once, REQUESTS)))


def _place_local(target: str, wanted: Wanted, checksum: str, size: int, how: Placing) -> Placed:
    there = _status(target)
    if there is not None and there.st_size == size:
        if there.st_mtime_ns == wanted.mtime_ns and not how.reread and is_stamped(target, checksum):
            return Placed("present", size)
        if checksum_file(target) == (checksum, size):
            stamp(target, checksum)
            if there.st_mtime_ns != wanted.mtime_ns:
                _set_time(target, wanted.mtime_ns)
            return Placed("present", size)
    directory = target.rpartition("/")[0]
    if there is None or stat.S_ISDIR(there.st_mode):
        if reason := _make_way(target, directory, there, how):
            return Placed("missing", reason=reason)
        there = None
    reasons = []
    for origin in origins(wanted, checksum, size, how.roots, how.kept):
        staging = how.attempt.staging(directory)
        try:
            descriptor, found = _copy(origin, staging, wanted.mtime_ns, how.make, there is not None)
        except FileNotFoundError:
            reasons.append(f"{origin} does not exist")
            continue
        try:
            if found == (checksum, size):
                stamp(descriptor, checksum)
                lacking = "" if there is None else give_rights(target, staging)
                how.attempt.check()
                if there is not None and not (how.private and there.st_nlink > 1):
                    _keeper(how.roots.target, directory).keep(target)
                    _drop_sidecar(target)
                _publish(descriptor, staging, target)
                return Placed(origin.name, size, lacking=lacking)
            reasons.append(f"{origin} holds other bytes ({found[1]} bytes, xxh3_128 {found[0]})")
            _remove(staging)
        except BaseException:
            _remove(staging)
            raise
        finally:
            os.close(descriptor)
    return Placed("missing", reason="; ".join(reasons))


def _make_way(target: str, directory: str, there: os.stat_result | None, how: Placing) -> str | None:
    """Replaces a file by a directory of the same path, or the other way round: files that loads have published there
    are moved to the target's `$cmroot`. Otherwise, or if it has subdirectories, which may belong to others, returns why
    it remains. May run concurrently: no call here mistakes a file for a directory."""
    above = None if there else _status(directory)
    if there is None and (above is None or stat.S_ISDIR(above.st_mode)):
        return None
    place, kinds = (target, "a directory, but a file") if there else (directory, "a file, but a directory")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        files = [f"{place}/{name}" for name in os.listdir(place)] if there else [place]
        if not all(stat.S_ISREG(os.lstat(path).st_mode) and is_published(path) for path in files):
            return f"{place} is {kinds} at the source; it has data that no load published: move it away, load again"
        how.attempt.check()
        for path in files:
            _keeper(how.roots.target, os.path.dirname(path)).keep(path)
            os.unlink(path)
        if there:
            os.rmdir(place)
    return None


def _publish(descriptor: int, staging: str, target: str) -> None:
    """Renames a file to its final name, if it is still the one that was written and read back."""
    try:
        if os.path.samestat(os.fstat(descriptor), os.lstat(staging)):
            os.rename(staging, target)
            return
    except FileNotFoundError:
        pass
    raise given_up(staging)


def _remove(staging: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staging)


@lru_cache(maxsize=256)
def _keeper(root: str, directory: str) -> Keeper:
    """Returns the keeper of a directory, probed once for all its files."""
    return choose_keeper(root, directory)


def _copy(
    origin: Origin, staging: str, mtime_ns: int | None, make: Callable[[str], object], closed: bool
) -> tuple[int, tuple[str, int]]:
    """Copies to a fresh name and reads back. Returns the open copy, its checksum and size. closed: only this user may
    open it, until it gets the rights of the file that it replaces. Raises FileNotFoundError without the origin."""
    if origin.content is None and is_local(origin.place):
        source = os.open(local_path(origin.place), os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = _create(staging, make, closed)
            return _fill(target, staging, mtime_ns, lambda target: copy_between(source, target, private=closed))
        finally:
            os.close(source)
    with origin.open() as stream:
        return _fill(_create(staging, make, closed), staging, mtime_ns, lambda target: _copy_stream(stream, target))


def _fill(
    target: int, staging: str, mtime_ns: int | None, fill: Callable[[int], tuple[str, int]]
) -> tuple[int, tuple[str, int]]:
    """Fills a new file; removes it after an error. target: its descriptor."""
    try:
        found = fill(target)
        if mtime_ns is not None:
            os.utime(target, ns=(mtime_ns, mtime_ns))
        return target, found
    except BaseException:
        os.close(target)
        _remove(staging)
        raise


def _copy_stream(source: BinaryIO, target: int) -> tuple[str, int]:
    with os.fdopen(target, "wb", closefd=False) as file:
        copy_stream(source, file)
    return checksum_descriptor(target)


def _create(path: str, make: Callable[[str], object], closed: bool) -> int:
    """Creates a new file of this attempt, and its directory if it does not exist."""
    flags, mode = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if closed else 0o666
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        make(os.path.dirname(path))
        return os.open(path, flags, mode)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _set_time(path: str, mtime_ns: int | None) -> None:
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


def _drop_sidecar(target: str) -> None:
    """Removes Hadoop's local checksum of the replaced file, by which the new file would be rejected."""
    directory, _, name = target.rpartition("/")
    try:
        os.unlink(f"{directory}/.{name}.crc")
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # in this case it cannot exist
            raise


def _place_object(wanted: Wanted, checksum: str, size: int, how: Placing) -> Placed:
    """Places a file on an object store or another fsspec filesystem. One of the right size is read to check it."""
    place, right = located(wanted.target), (checksum, size)
    heeded = remote_store(place.text).heeds(how.attempt.staging(place.parent.text))
    write = _write_checked if heeded.digests and size <= WHOLE else _write_aside
    for _ in range(ATTEMPTS):
        replaced: list[str] | None = None
        with contextlib.suppress(FileNotFoundError):
            if place.size() == size and checksum_at(wanted.target) == right:
                return Placed("present", size)
            how.attempt.check()
            if remote_store(place.text).has_rights(place.text):
                replaced = []
            else:
                _take_away(wanted.target, how.roots, how.private)
        if replaced is None:
            how.make(parent(wanted.target))
        reasons = []
        for origin in origins(wanted, checksum, size, how.roots, how.kept):
            try:
                if replaced is None:
                    found, published = write(origin, place, right, how)
                else:
                    found, published = _write_aside(origin, place, right, how, replaced)
            except FileNotFoundError:
                reasons.append(f"{origin} does not exist")
                continue
            if published:
                return Placed(origin.name, size, lacking=", ".join(replaced or ()))
            if found == right:  # another attempt has written or removed the object since
                if not place.exists():  # some stores treat a delete marker as an object
                    write = _write_aside
                break
            reasons.append(f"{origin} holds other bytes ({found[1]} bytes, xxh3_128 {found[0]})")
        else:
            return Placed("missing", reason="; ".join(reasons))
    raise given_up(wanted.target)


def _write_checked(origin: Origin, place: Place, right: tuple[str, int], how: Placing) -> tuple[tuple[str, int], bool]:
    """Returns checksum and size of an origin, and True if it was written to the object: if they are right, and no other
    attempt has written one. The store compares the received bytes with a digest of those that were hashed here."""
    with origin.open() as source:
        data = at_most(source, right[1] + 1)  # a different file may be far larger
    found = checksum_stream(io.BytesIO(data))
    if found != right:
        return found, False
    how.attempt.check()
    return found, remote_store(place.text).create_checked(place.text, data)


def at_most(source: BinaryIO, size: int) -> bytes:
    """Reads a stream to its end, or to this number of bytes."""
    data = bytearray()
    while block := source.read(min(BUFFER_SIZE, size - len(data))):
        FLOW.passed(len(block))
        data += block
    return bytes(data)


def _write_aside(
    origin: Origin, place: Place, right: tuple[str, int], how: Placing, replaced: list[str] | None = None
) -> tuple[tuple[str, int], bool]:
    """Like `_write_checked`, for stores without checks: the copy is read back before it gets its final name. replaced:
    receives rights of the file that it replaces which the copy cannot have; None: it replaces none."""
    staging = Place(how.attempt.staging(place.parent.text))
    preserved = how.preserve if {scheme(origin.place), scheme(place.text)} <= SCHEMES else ()  # by carry_attributes
    private = replaced is not None or gives_mode(origin.place, preserved)
    with origin.open() as source, remote_store(staging.text).open_new(staging.text, private=private) as target:
        found = copy_stream(source, target)
    if found == right:
        found = checksum_at(staging.text)
    try:
        if found == right:
            if replaced is not None and scheme(place.text) != "s3":
                own = [name for name in BY_RPC if name not in preserved]
                replaced += filter(None, [give_rights(place.text, staging.text, own)])
            carry_attributes(origin.place, staging.text, preserved)
            how.attempt.check()
            if replaced is not None:
                replaced += _replace(staging, place, how)
            else:
                staging.move(place)
            return found, True
    except FileNotFoundError:  # the origin, or the file to replace, was removed since: the caller compares again
        pass
    except KeepError:  # it was replaced
        staging.remove_own()
        raise
    staging.remove_own()
    return found, False


def _replace(staging: Place, place: Place, how: Placing) -> list[str]:
    """Replaces a file by one with its rights; the replaced one is moved to `$cmroot`. On S3 an object gets them when it
    is written: over the old one, so that a crash loses none. Returns those that it cannot have."""
    if scheme(place.text) != "s3":
        _take_away(place.text, how.roots, how.private)
        staging.move(place)
        return []
    if not how.private:
        refuse_root(how.roots.target, place.text)
        refuse_changed(place.text, keep_and_check(how.roots.target, place.text))
    lacking = remote_store(place.text).copy_like(staging.text, place.text, place.text)
    staging.remove_own()
    return lacking


def _take_away(target: str, roots: Roots, private: bool) -> None:
    """Removes or recycles a file. One hard-linked unchanged is a second name, or a store's copy, of a file that remains
    for its readers."""
    if private and (not is_local(target) or os.stat(local_path(target)).st_nlink > 1):
        located(target).remove()
    else:
        recycle(roots.target, target)


def remove_file(target: str, roots: Roots, *, private: bool = False) -> bool:
    """Recycles a target file that the source no longer has. Returns False if it does not exist. May run twice.
    `private`: see CopyTask."""
    if is_local(target):
        there = _status(local_path(target))
        if there is None or stat.S_ISDIR(there.st_mode):  # since then replaced by a directory of the same name
            return False
    try:
        _take_away(target, roots, private)
    except FileNotFoundError:
        return False
    if is_local(target):
        _drop_sidecar(local_path(target))
    return True
