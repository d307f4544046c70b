"""Java properties as `java.util.Properties` reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cmroot.store.spelling import normal, scheme, split_authority

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def decoded(data: bytes) -> str:
    """The text of a file: UTF-8 as Gobblin reads it, and where it is none ISO-8859-1, as Java does."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Keys, values and the lines they begin at: `key=value`, `key: value` or `key value`, comments with `#` or `!`,
    escapes undone, lines that go on after a backslash. Raises ValueError naming the line."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, first in lines:
        line = first.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            _, more = next(lines, (0, ""))
            line = line[:-1] + more.lstrip(_BLANKS)
        match = _ENTRY.match(line)
        assert match
        try:
            yield _unescaped(match[1]), _unescaped(match[2]), number
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    found = _ESCAPE.sub(lambda match: _sign(match[1]), text)
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of a letter become one


def _sign(escaped: str) -> str:
    if escaped == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)


# ---- credentials -----------------------------------------------------------------------------------------------------
# Credentials in text: what is quoted of URLs that somebody gave. Pure.


_CREDENTIALS = re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@]*:[^\s@]*@[^\s']*")


def without_credentials(text: str) -> str:
    """The text; of URLs with user and password, their scheme."""
    return _CREDENTIALS.sub(r"\1***@...", text) if "@" in text else text


# ---- queues of buckets -----------------------------------------------------------------------------------------------
# Which queue hears of which bucket, as users write it. Pure.


def check_queues(queues: Mapping[str, str]) -> None:
    """`queues`: URLs by bucket (`s3://name`). Raises ValueError for what is no bucket or no URL, and where a bucket has
    two queues, or a queue two buckets."""
    for bucket, url in queues.items():
        if scheme(bucket) != "s3" or split_authority(bucket)[1].strip("/") or "://" not in url:
            raise ValueError(f"{bucket}={url} is no bucket and its queue")
    if len({normal(bucket) for bucket in queues}) < len(queues):
        raise ValueError("one bucket with two queues")
    if len(set(queues.values())) < len(queues):
        raise ValueError("two buckets with one queue")
