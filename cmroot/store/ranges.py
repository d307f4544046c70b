"""Listings of many places of an S3 bucket in few requests: one flat listing in the order of keys, which skips the keys
between the places. It takes one request per thousand objects, and at most one more per place.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import naming, scheme, split_authority

Infos = dict[str, dict[str, Any]]  # key with its bucket -> what the store reports for the object, in fsspec's form

PAGE = 1000  # maximum number of objects in an answer: S3's own limit
_UNORDERED = ("--x-s3", "--xa-s3")  # ends of the names of directory buckets, which list in no order, and their aliases


def lists_ranges(place: str) -> bool:
    """Returns True if the store of a place lists from a given key on, in the order of keys."""
    return scheme(place) == "s3" and not split_authority(place)[0].endswith(_UNORDERED)


def trees(places: Sequence[str]) -> Iterator[tuple[int, Infos]]:
    """Yields each of these places of one bucket (by index) with every object below it, in the order of keys. {}: the
    place must be listed separately; it is empty, it is inside another one, or the store does not list in order.

    Holds one page, and the objects of one place. Raises the errors of a listing.
    """
    store = FsspecStore(places[0])
    wanted = [(store.key(place).rstrip("/") + "/", index) for index, place in enumerate(places)]
    wanted.sort(key=lambda each: each[0].encode())
    reading = _Reading(store, _above(wanted[0][0], wanted[-1][0]))
    last = None
    for prefix, index in wanted:
        if last is not None and prefix.startswith(last):
            yield index, {}
            continue
        last = prefix
        with naming(places[index]):
            found = reading.below(prefix)
        yield index, found


def _above(first: str, last: str) -> str:
    """Returns the common prefix of all keys between two, up to the slash of its last directory."""
    return posixpath.commonprefix([first, last]).rpartition("/")[0] + "/"


class _Reading:
    """One listing of a bucket, forward only."""

    def __init__(self, store: FsspecStore, above: str) -> None:
        """above: the bucket, and the common prefix of the keys of all places, ending with a slash."""
        self._filesystem = store.filesystem
        self._bucket, _, self._prefix = above.partition("/")
        self._page: deque[dict[str, Any]] = deque()
        self._last = b""  # key, without the bucket
        self._token = ""  # of the page after this one
        self._ended = self._disordered = False
        self._size, self._used = PAGE, 0

    def below(self, prefix: str) -> Infos:
        """Returns the objects below a place. prefix: its key with its bucket, and a slash; in the order of keys."""
        found: Infos = {}
        wanted = prefix.partition("/")[2].encode()
        while (info := self._next(wanted)) is not None:
            self._page.popleft()
            self._used += 1
            found[f"{self._bucket}/{info['Key']}"] = info
        return {} if self._disordered else found

    def _next(self, wanted: bytes) -> dict[str, Any] | None:
        """Returns the next object below; it remains in the page."""
        while not self._disordered:
            while self._page and self._page[0]["Key"].encode() < wanted:
                self._page.popleft()
            if self._page:
                return self._page[0] if self._page[0]["Key"].encode().startswith(wanted) else None
            if self._ended:
                return None
            self._read(max(self._last, wanted))
        return None

    def _read(self, after: bytes) -> None:
        """Reads the next page. Consecutive pages use the store's own token: not all stores order names like this. A
        listing with few relevant objects requests smaller pages."""
        if self._last:
            self._size = min(PAGE, max(PAGE // 50, 4 * self._used))
        self._used = 0
        goes_on = self._token and after == self._last
        begin = {"ContinuationToken": self._token} if goes_on else {"StartAfter": after.decode()}
        answer = self._filesystem.call_s3(
            "list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=self._size, **begin
        )
        for each in answer.get("Contents", ()):
            key = each["Key"].encode()
            if key <= self._last or key <= after:
                self._disordered = True
                return
            self._last = key
            self._page.append({**each, "name": f"{self._bucket}/{each['Key']}", "size": each["Size"], "type": "file"})
        self._ended, self._token = not answer["IsTruncated"], answer.get("NextContinuationToken", "")
