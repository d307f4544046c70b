"""Java properties, parsed as `java.util.Properties` does. Pure."""

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
    """Decodes a file: as UTF-8, as Gobblin does, or else as ISO-8859-1, as Java does."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields keys, values and their first lines: `key=value`, `key: value` or `key value`, comments with `#` or `!`,
    with escapes decoded and lines continued after a backslash. Raises ValueError naming the line."""
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
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs


def _sign(escaped: str) -> str:
    if escaped == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)


# ---- credentials -----------------------------------------------------------------------------------------------------
# Credentials in text: redaction of URLs in user input. Pure.


_CREDENTIALS = re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@]*:[^\s@]*@[^\s']*")


def without_credentials(text: str) -> str:
    """Returns the text, with URLs that contain user and password reduced to their scheme."""
    return _CREDENTIALS.sub(r"\1***@...", text) if "@" in text else text


# ---- queues of buckets -----------------------------------------------------------------------------------------------
# Notification queues of buckets, as written by users. Pure.


def check_queues(queues: Mapping[str, str]) -> None:
    """Checks `queues`, URLs by bucket (`s3://name`). Raises ValueError for an invalid bucket or URL, and if a bucket
    has two queues, or a queue two buckets."""
    for bucket, url in queues.items():
        if scheme(bucket) != "s3" or split_authority(bucket)[1].strip("/") or "://" not in url:
            raise ValueError(f"{bucket}={url} is no bucket and its queue")
    if len({normal(bucket) for bucket in queues}) < len(queues):
        raise ValueError("one bucket with two queues")
    if len(set(queues.values())) < len(queues):
        raise ValueError("two buckets with one queue")
