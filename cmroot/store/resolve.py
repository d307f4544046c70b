"""Real places: whether two places touch, whatever their spelling and whichever links lead there.

Every rule that protects a place (a legal hold, `--protect`, `$cmroot` itself, another table's data) compares here:
text alone tells nothing about `/w/a/../b`, `file:///w//b` or a symbolic link.
"""

from __future__ import annotations

import os
import posixpath
import stat

from cmroot.errors import Protected
from cmroot.store.local import status_of
from cmroot.store.place import Place, is_local, local_path, normal, split_authority
from cmroot.store.spelling import raise_named


def resolved(place: str) -> str:
    """One spelling for each directory: absolute, without `.`, `..` and, on a local filesystem, symbolic links.

    The place, or a tail of it, may be missing. On other stores `..` is folded as Hadoop's Path does. Raises what
    `naming` raises when the store cannot tell (a parent that this user may not search, a failing disk): an unknown
    place is never taken for a harmless one.
    """
    if not is_local(place):
        head, path = split_authority(normal(place))
        return head + posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
    path, missing = local_path(place), ""
    while True:
        try:
            found = os.path.normpath(os.path.join(os.path.realpath(path, strict=True), missing))
            return resolved(found) if ".." in missing.split("/") else found  # what `..` came back to may be a link
        except (FileNotFoundError, NotADirectoryError):
            status = status_of(path, follow=False)
            if status is not None and stat.S_ISLNK(status.st_mode):  # it leads to a place that is missing
                path = os.path.join(os.path.dirname(path), os.readlink(path))
            else:
                path, name = os.path.split(path)
                missing = os.path.join(name, missing) if missing else name
        except OSError as error:
            raise_named(error, path)


def as_written(text: str) -> Place:
    """The place that a person means, in its normal form: on a local filesystem `..` leads where the system would go.
    UnknownPlace for a text that is no place."""
    dotted = is_local(text) and "/../" in f"{text}/" and "\0" not in text
    return Place(resolved(text) if dotted else Place(text).normal)


def located(location: str) -> Place:
    """The place that a metastore's location means to its readers: `..` is folded (see `folded`), and only then is the
    spelling another. UnknownPlace for a text that is no place."""
    return Place(folded(location) if "/.." in location else location)


def folded(place: str) -> str:
    """A place by its text alone, `.` and `..` folded as Hadoop's Path does it: what a metastore's location means where
    the store cannot be asked. Nothing leads above a filesystem's root or a bucket."""
    text = normal(place)
    if "/." not in text:
        return text
    head, path = split_authority(text)
    return head + (posixpath.normpath("/" + path.lstrip("/")).rstrip("/") or "/")


def tidied(place: str) -> str:
    """A folded place with its original scheme, for locations in a metastore: a server that has `s3a` has no `s3`."""
    text = folded(place)
    return text if is_local(place) else place.partition("://")[0] + text[text.index("://") :]


def is_within(place: str, other: str) -> bool:
    """Whether a resolved place is the other, or lies below it."""
    return f"{place.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def touches(one: str, other: str) -> bool:
    """Whether two resolved places are the same, or one lies in the other."""
    return is_within(one, other) or is_within(other, one)


def refuse_root(root: str, place: str) -> None:
    """Raises Protected for a place at, in or around a change-management root: this one, and on a local filesystem any.
    To be asked right before anything outside of it is moved or removed. Costs a few stat calls."""
    real, own = resolved(place), resolved(root)
    if touches(real, own):
        raise _protected(place, root)
    if not is_local(place):
        return
    above = real
    while above != "/":
        if _is_root(above):
            raise _protected(place, above)
        above = os.path.dirname(above)


def _is_root(directory: str) -> bool:
    path = f"{directory}/FORMAT"
    try:
        with open(path, "rb") as file:
            return b'"cmroot"' in file.read(1 << 10)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        raise_named(error, path)


def _protected(place: str, root: str) -> Protected:
    return Protected(
        f"{place}: lies around {root} or in it, and a change-management root is nobody's data",
        hint="put $cmroot beside the tables, not among them; a table whose location is there is to get another",
    )
