"""The catalog that a root is about: one name in two catalogs is two databases, and a root has names only."""

from __future__ import annotations

import msgspec

from cmroot.errors import FormatError
from cmroot.store.place import Place
from replicator.errors import Refused
from replicator.metastore.client import MetastoreReader

FILE = "catalog"
_USED = ("log", "files", "loads")


class _Catalog(msgspec.Struct, frozen=True):
    catalog: str


def bind_catalog(root: str, metastore: MetastoreReader) -> None:
    """A root is of the first catalog that is captured into it, loaded beside it, or cleaned up into it. Raises Refused
    for another. Under a lease of the root's; safe to run twice."""
    refuse_other_catalog(root, metastore)
    bound = metastore.bound_catalog
    if bound is not None and bound != metastore.default_catalog and root_catalog(root) is None:
        (Place(root) / FILE).write_bytes(msgspec.json.encode(_Catalog(bound)) + b"\n")


def refuse_other_catalog(root: str, metastore: MetastoreReader) -> None:
    """As `bind_catalog`, for who binds nothing."""
    known, bound = root_catalog(root), metastore.bound_catalog
    if known == bound or (known is None and not any(_has_names(Place(root) / name) for name in _USED)):
        return
    default = metastore.default_catalog
    known, wanted = known or default, bound or default
    if known != wanted:
        raise Refused(
            f"{root} is the root of catalog {known}, not of {wanted}", hint="use another $cmroot for each catalog"
        )


def _has_names(place: Place) -> bool:
    try:
        return bool(place.list())
    except FileNotFoundError:
        return False


def root_catalog(root: str) -> str | None:
    """The catalog that a root was bound to; None: to none, or the default one. Raises FormatError."""
    path = Place(root) / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Catalog).catalog
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint='write {"catalog": "NAME"} with the name of its catalog') from error
