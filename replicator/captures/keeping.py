"""Which keeper each store gets: one capture may see tables on several, and a `$cmroot` can link from one disk only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from cmroot.keep.keepers import Keeper, choose_keeper
from cmroot.store.local import device
from cmroot.store.place import is_local, normal, parent, split_authority
from replicator.captures.inventory import DataObject


class Keepers:
    """The keepers of one capture, each chosen when the first object on its store is listed."""

    def __init__(self, root: str, requested: str, tell: Callable[[str], None]) -> None:
        """`requested`, `tell`: as for `choose_keeper`, which raises KeepError where nothing can be kept."""
        self._root, self._requested, self._tell = root, requested, tell
        self._chosen: dict[object, Keeper] = {}
        self._device = lru_cache(maxsize=10_000)(device)

    @property
    def names(self) -> str:
        """Those chosen so far: `link`, or `copy, version`."""
        return ", ".join(sorted({keeper.name for keeper in self._chosen.values()}))

    def of(self, location: str) -> Keeper:
        store = self._store(location)
        if store not in self._chosen:
            self._chosen[store] = choose_keeper(self._root, location, self._requested, tell=self._tell)
        return self._chosen[store]

    def grouped(
        self, objects: Iterable[DataObject], failed: Callable[[DataObject, OSError], None]
    ) -> Iterable[tuple[Keeper, Sequence[DataObject]]]:
        """Objects by the keeper of their store; those whose directory cannot even be looked at have `failed`."""
        groups: dict[Keeper, list[DataObject]] = {}
        for obj in objects:
            try:
                keeper = self.of(obj.location)
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                failed(obj, error)
                continue
            groups.setdefault(keeper, []).append(obj)
        return groups.items()

    def _store(self, location: str) -> object:
        """A device, or a bucket. A partition that is a mount point of its own counts to the device around it: its files
        cannot be linked, and the link keeper copies those."""
        if is_local(location):
            return self._device(parent(location))
        return split_authority(normal(location))[0]
