"""Locations as text: parsing and normalising of paths and URLs without querying a store. Pure, and fast enough to run
for each file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NoReturn

from cmroot.errors import Error, NoSpace, NotWritable, StorageUnreachable, UnknownPlace

STAGING = ".aside-"
"""Prefix of the names of files being written. It begins with a dot, so listings and Hive skip them; never read."""


def scheme(place: str) -> str:
    """Returns `file` for local paths, else the URL's scheme with `s3a` and `s3n` read as `s3`."""
    if place.startswith(("/", "file:")):
        return "file"
    head, separator, _ = place.partition("://")
    if not separator or "/" in head:
        return "file"
    return {"s3a": "s3", "s3n": "s3", "local": "file"}.get(head, head)


def is_local(place: str) -> bool:
    return scheme(place) == "file"


def local_path(place: str) -> str:
    """Returns the absolute path of a local place, without a trailing slash. Raises UnknownPlace for other stores."""
    if place.startswith("/"):
        path = place
    elif place.startswith(("file:", "local:")):
        path = place.partition(":")[2]
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise UnknownPlace(f"{place}: a file: URI cannot name the host {host!r}", hint="write file:///path")
            path = "/" + rest
        if not path.startswith("/"):
            raise UnknownPlace(f"{place}: a file: URI needs an absolute path", hint="write file:///path")
    elif is_local(place) and place:
        path = os.path.abspath(place)
    else:
        raise UnknownPlace(f"{place!r} is not on a local filesystem", hint="give a path or a file: URI")
    if path.endswith("/") or "//" in path:  # Hadoop's Path does the same
        path = "/" + "/".join(part for part in path.split("/") if part)
    return path


def normal(place: str) -> str:
    """Normalises a place: the absolute path of a local one, else the URL for fsspec, without trailing slash."""
    if place[:1] == "/" or is_local(place):
        return local_path(place)
    return f"{scheme(place)}://{place.partition('://')[2].rstrip('/')}"


def join(place: str, *parts: str) -> str:
    """Returns a place below another, written like it; empty parts are left out."""
    names = [part.strip("/") for part in parts if part.strip("/")]
    if not names:
        return place
    return "/".join([_without_slash(place), *names])


def parent(place: str) -> str:
    """Returns the place above; a filesystem's root or a bucket is its own parent."""
    if "://" not in place and (above := place.rpartition("/")[0]) not in ("", "file:", "local:", place[:-1]):
        return above  # as below, and four times as fast
    trimmed = _without_slash(place)
    head, path = split_authority(trimmed)
    if not path.strip("/"):
        return place
    above = head + path.rpartition("/")[0]
    return above + "/" if above in ("", "file:", "local:", "file://") else above


def upwards(path: str) -> Iterator[str]:
    """Yields an absolute path without authority, and all above it."""
    while path not in ("", "/"):
        yield path
        path = path.rpartition("/")[0]
    yield "/"


def name_of(place: str) -> str:
    """Returns the last name of a place."""
    return _without_slash(place).rpartition("/")[2]


def _without_slash(place: str) -> str:
    head, path = split_authority(place)
    return head + path.rstrip("/")


def split_authority(place: str) -> tuple[str, str]:
    """Splits a place: ("s3://bucket", "/a/b"), ("file:", "/a"), ("file://", "/a"), ("", "/a")."""
    head, separator, rest = place.partition("://")
    if separator and "/" not in head:
        authority, slash, path = rest.partition("/")
        return f"{head}://{authority}", slash + path
    if place.startswith(("file:", "local:")):
        head, _, path = place.partition(":")
        return head + ":", path
    return "", place


def is_absolute(text: str) -> bool:
    """Returns True for an absolute path or a URL of a directory, without `.` and `..`."""
    with contextlib.suppress(UnknownPlace):
        names = split_authority(normal(text))[1].split("/")
        return (text.startswith("/") or ":/" in text) and not {".", ".."} & set(names)
    return False


def is_root(place: str) -> bool:
    """Returns True for the root of a store: `s3://bucket/`, `file:///`. Entries with this location are of files outside
    of their table's directory, so nothing lists it."""
    return place.endswith("/") and split_authority(place)[1] == "/"


def refuse_credentials(place: str) -> None:
    """Raises UnknownPlace, without showing them, for a URL with a password or keys: URLs are written to logs, records
    and process lists. Keys may contain a slash, written unescaped by mistake."""
    head, separator, rest = place.partition("://")
    authority, _, path = rest.partition("/")
    user, at, _ = authority.rpartition("@")
    _, colon, port = authority.rpartition(":")
    cut = colon and "@" in path and not port.endswith("]") and (scheme(place) == "s3" or not port.isdecimal())
    if separator and (cut or (at and (":" in user or scheme(place) == "s3"))):
        raise UnknownPlace(
            f"{head}://***@...: a URL with credentials",
            hint="leave them out: stores take them from the environment or a profile",
        )


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Converts errors of the operating system that require action by the operator into ours, with the path and a hint.

    A missing file still raises FileNotFoundError, an existing one FileExistsError: callers handle those.
    """
    try:
        yield
    except OSError as error:
        raise_named(error, path)
    except Exception as error:
        better = _of_driver(error, path)
        if better is None:
            raise
        raise better from error


def raise_named(error: OSError, path: str) -> NoReturn:
    """Does the same as `naming`, for loops in which a context manager per file would be too slow."""
    better = _named(error, path) or _of_driver(error, path)
    if better is None:
        raise error
    raise better from error


def _of_driver(error: Exception, path: str) -> Error | None:
    """Converts errors specific to drivers of stores; matched by class name, because no driver has to be installed."""
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    answered = str(getattr(error, "status_code", None) or getattr(error, "code", None)) if kinds & _ANSWERED else ""
    said = " ".join(str(error).split("\n")[0].split())
    if kinds & _NO_ANSWER or answered in _LATER:
        return StorageUnreachable(f"{path}: {said}", hint=AWAY)
    if kinds & _NO_IDENTITY or answered == "401":
        return NotWritable(
            f"{path}: {said}",
            hint="give this user credentials of the store: AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS,"
            " AZURE_STORAGE_ACCOUNT_KEY, a role",
        )
    return NotWritable(f"{path}: {said}", hint=_ALLOW) if answered == "403" else None


_ANSWERED = frozenset({"azure.HttpResponseError", "gcsfs.HttpError"})
_LATER = frozenset({"408", "429", "500", "502", "503", "504"})
_NO_ANSWER = frozenset(
    {
        "aiohttp.ClientError",
        "azure.ServiceRequestError",
        "azure.ServiceResponseError",
        "botocore.ConnectionError",
        "botocore.HTTPClientError",
        "google.TransportError",
        "requests.RequestException",
    }
)
_NO_IDENTITY = frozenset({"azure.ClientAuthenticationError", "google.GoogleAuthError"}) | frozenset(
    f"botocore.{name}"
    for name in (
        "CredentialRetrievalError",
        "NoCredentialsError",
        "NoRegionError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "SSOError",
        "TokenRetrievalError",
    )
)
AWAY = "check the store, its endpoint and the network; run the same command again once it answers"


def _named(error: OSError, path: str) -> Error | None:
    culprit = error.filename2 or error.filename  # of a link or rename, the new name
    what = f"{culprit if isinstance(culprit, str) else path}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace(what, hint="free space or raise the quota, then run the same command again")
        case errno.EACCES | errno.EPERM:
            return NotWritable(what, hint=_ALLOW)
        case errno.EROFS:
            return NotWritable(what, hint="the mount is read-only: remount it, or choose another location")
        case errno.ENOTDIR:
            return NotWritable(what, hint="a parent of this path is a file, not a directory: choose another location")
        case errno.EINVAL if scheme(path) == "hdfs":
            return NotWritable(
                what,
                hint="HDFS allows no `:` in names: rename the file at the source, or exclude its table or partition",
            )
        case errno.ENOKEY:
            return NotWritable(what, hint=_KEY)
        case errno.EAGAIN:  # from a NameNode that temporarily accepts no changes
            return StorageUnreachable(what, hint=AWAY)
        case errno.EBUSY if scheme(path) == "s3":  # 503, on every attempt
            return StorageUnreachable(what, hint=AWAY)
    if isinstance(error, PermissionError) or is_forbidden(error):  # of a store that has no error numbers
        return NotWritable(what, hint=_ALLOW)
    if isinstance(error, ConnectionError | TimeoutError):
        return StorageUnreachable(what, hint=AWAY)
    return None


def is_forbidden(error: OSError) -> bool:
    """Returns True for gcsfs' permission error, which has no class of its own."""
    return error.errno is None and str(error).startswith("Forbidden: ")


_KEY = (
    "name the key server in the core-site.xml of HADOOP_CONF_DIR, also on executors"
    " (hadoop.security.key.provider.path = kms://...), and let this user use the zone's key"
)
_ALLOW = "give this user the right to read and write there, or choose another location"


def hadoop_place(place: str) -> str:
    """Returns a path in Hadoop's syntax."""
    if is_local(place):
        return "file:" + local_path(place)
    if place.startswith("s3://"):
        return "s3a://" + place.removeprefix("s3://")
    return place
