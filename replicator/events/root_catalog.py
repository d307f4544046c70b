"""The catalog that a root is about: one name in two catalogs is two databases, and a root has names only."""

from __future__ import annotations

import msgspec

from cmroot.errors import FormatError
from cmroot.store.place import Place
from replicator.errors import Refused
from replicator.metastore.values import CATALOG

FILE = "catalog"
_USED = ("log", "files", "loads")


class _Catalog(msgspec.Struct, frozen=True):
    catalog: str


def bind_catalog(root: str, catalog: str | None) -> None:
    """A root is of the first catalog that is captured into it, or loaded beside it (None: the default one). Raises
    Refused for another. Under the root's lease; safe to run twice."""
    refuse_other_catalog(root, catalog)
    if root_catalog(root) is None and (catalog or CATALOG) != CATALOG:
        (Place(root) / FILE).write_bytes(msgspec.json.encode(_Catalog(catalog or CATALOG)) + b"\n")


def refuse_other_catalog(root: str, catalog: str | None) -> None:
    """As `bind_catalog`, for who binds nothing."""
    wanted, at = catalog or CATALOG, Place(root)
    known = root_catalog(root)
    if known is None and any(map(_has_names, (at / name for name in _USED))):
        known = CATALOG
    if known is not None and known != wanted:
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
