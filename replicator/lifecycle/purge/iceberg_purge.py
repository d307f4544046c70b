"""Purging one Iceberg table: search it, delete the rows on every branch, rewrite what still has them, expire the
snapshots that name such files, record. Has side effects, all by Iceberg itself in Spark.

    search      all files that any snapshot names, and manifests' bounds
    delete      `DELETE FROM` each branch that has a row with an id
    rewrite     files with deletes that apply to them; then manifests, whose entries about removed files have bounds
    record      checksums of all files that the expiry deletes and that have values of ids
    expire      the snapshots that name one of these files, by their ids; no others
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cmroot.store.spelling import hadoop_place
from replicator.core.text import quoted_name
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.iceberg_search import MAIN, IcebergFinder, Tree
from replicator.lifecycle.purge.ids import KEYS, keys_of
from replicator.lifecycle.purge.lake_purge import Lake, Seen, counted
from replicator.lifecycle.purge.lake_search import Held
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.state import Unit
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.iceberg_actions import IcebergActions, why_no_iceberg

_REWRITE = {
    "delete-file-threshold": "1",  # every file to which deletes apply: they leave its bytes
    "min-input-files": str(2**31 - 1),  # and no file because of its size
    "min-file-size-bytes": "0",
    "max-file-size-bytes": str(2**62),
    "use-starting-sequence-number": "false",  # so that equality deletes, which have ids, apply to no file any more
    "remove-dangling-deletes": "true",
}


class IcebergLake(Lake, IcebergActions):
    """The steps of a purge on one table."""

    finder: IcebergFinder

    def __init__(self, work: TableWork, onboarded: Onboarded) -> None:
        Lake.__init__(self, work, onboarded)
        IcebergActions.__init__(self, work.ids.session, onboarded.table.db, onboarded.table.name)
        self.finder = IcebergFinder(onboarded, work.ids, work.remover.engine)

    def why_not(self) -> str:
        return why_no_iceberg(self._session)

    def seen(self) -> Seen:
        return self._seen(*self._look())

    def purge(self, unit: Unit) -> tuple[Unit, str]:
        tree, held = self._look()
        if why := self._shared(held):
            return unit, why
        self._note_matched(held)
        for branch in sorted(tree.refs.keys() - tree.tags):
            tree, held = self._clean(branch, tree, held)
        self._work.remover.check()
        expired = tree.holding(held) - set(tree.refs.values())
        unit = self._record(unit, tree, held, expired)
        if expired:
            if why := self._shared(tree.only_in(expired)):
                return unit, why
            self._expire(expired)
        tree, held = self._look()
        if self._remove_unnamed(unit, tree):
            tree, held = self._look()
        seen = self._seen(tree, held)
        self.gaps = seen.gaps
        return counted(unit, seen), self._left(tree, held)

    def _look(self) -> tuple[Tree, dict[str, Held]]:
        with self._work.task("search", self._onboarded):
            return self.finder.look(self._work.metastore)

    def _seen(self, tree: Tree, held: Mapping[str, Held]) -> Seen:
        heads, gaps = tree.live(set(tree.refs.values())), [*self.finder.gaps, *self._tagged(tree, held)]
        files, snapshots = len(held.keys() - heads.keys()), len(tree.holding(held) - set(tree.refs.values()))
        older = f"{files:,} older files and {snapshots:,} older snapshots hold such rows"
        sizes = {path: each.size for path, each in heads.items()}
        return Seen(tree.metadata["location"], held, sizes, _rows(tree), older, bool(held), gaps)

    def _tagged(self, tree: Tree, held: Mapping[str, Held]) -> Iterator[PurgeGap]:
        holding = tree.holding(held)
        for name in sorted(tree.tags):
            if tree.refs[name] in holding:
                why = f"the tag {name} names files with rows of ids, and a tag cannot be rewritten: drop it"
                yield PurgeGap(self._onboarded.name, why)

    def _left(self, tree: Tree, held: Mapping[str, Held]) -> str:
        tags = {tree.refs[name] for name in tree.tags}
        if not (left := tree.holding(held)):
            return ""
        names = sorted(name for name, snapshot in tree.refs.items() if snapshot in left)
        if left <= tags:
            return f"rows of ids are left in the tags {', '.join(names)}: drop them, and purge again"
        return f"{len(left):,} snapshots still name files with rows of ids ({', '.join(names) or 'of no branch'})"

    # ---- branches -------------------------------------------------------------------------------------------------

    def _clean(self, branch: str, tree: Tree, held: dict[str, Held]) -> tuple[Tree, dict[str, Held]]:
        """Commits until no manifest of a branch has an entry about a file with ids. Returns the tree afterwards."""
        with self._work.task("purge", self._onboarded):
            if self._names(branch, tree, held, live=True):
                self._delete(branch)
                tree, held = self._look()
            if branch == MAIN:
                if self._names(branch, tree, held, live=True):
                    self._rewrite(branch)
                    tree, held = self._look()
                if self._names(branch, tree, held):
                    self._loaded().rewriteManifests().clusterBy(self._constant()).commit()
                    tree, held = self._look()
            elif self._names(branch, tree, held):  # manifests of other branches are rewritten with their files only
                self._rewrite(branch, {"rewrite-all": "true"})
                tree, held = self._look()
            if self._names(branch, tree, held):  # a commit omits manifests without live files
                append = self._loaded().newAppend()
                (append if branch == MAIN else append.toBranch(branch)).commit()
                tree, held = self._look()
        return tree, held

    def _names(self, branch: str, tree: Tree, held: Collection[str], *, live: bool = False) -> bool:
        return any(each.path in held and (each.is_live or not live) for each in tree.of(tree.refs[branch]))

    def _delete(self, branch: str) -> None:
        self._work.remover.check()
        keys, _, _ = keys_of(self._work.ids, self._onboarded)
        keys.createOrReplaceTempView(KEYS)
        name = (*self._table_name, *(() if branch == MAIN else (f"branch_{branch}",)))
        column = searching.key_column(self._onboarded)
        self._session.sql(f"DELETE FROM {quoted_name(*name)} AS t WHERE {column} IN (SELECT key FROM {KEYS})")

    def _rewrite(self, branch: str, more: Mapping[str, str] | None = None) -> None:
        self._work.remover.check()
        action = self._actions().rewriteDataFiles(self._loaded())
        for key, value in (_REWRITE | dict(more or {})).items():
            action = action.option(key, value)
        (action if branch == MAIN else action.toBranch(branch)).execute()

    def _constant(self) -> Any:
        """Returns a function of Java that puts all files into one group."""
        return self._session._jvm.com.google.common.base.Functions.constant("all")

    # ---- snapshots ------------------------------------------------------------------------------------------------

    def _expire(self, snapshots: Iterable[int]) -> None:
        self.expire(snapshots)

    def _record(self, unit: Unit, tree: Tree, held: Mapping[str, Held], expired: Collection[int]) -> Unit:
        """Records the files that Iceberg is to delete."""
        about = (*tree.naming(held), *tree.statistics(tree.holding(held)))
        return self._write_record(unit, held, about, tree.only_in(expired))

    def _remove_unnamed(self, unit: Unit, tree: Tree) -> bool:
        """Removes recorded files that no snapshot names any more, and that a killed expiry has left: by Iceberg's own
        action, which compares them with the table again. Returns False if there are none."""
        named = tree.named()
        left = [path for path in self._recorded_files(unit) if path not in named]
        if not left:
            return False
        with suppress(FileNotFoundError):
            rows = [(hadoop_place(path), None) for path in left]
            frame = self._session.createDataFrame(rows, "file_path STRING, last_modified TIMESTAMP")
            frame = frame.selectExpr("file_path", "timestamp'1970-01-02 00:00:00' AS last_modified")
            self._actions().deleteOrphanFiles(self._loaded()).compareToFileList(frame._jdf).execute()
        return True


def _rows(tree: Tree) -> int:
    now = tree.refs.get(MAIN)
    live = tree.live([now]) if now is not None else {}
    return sum(each.records for each in live.values() if each.content == 0)


# ---- certificates ----------------------------------------------------------------------------------------------------


def left(seen: tuple[Tree, Mapping[str, Held]]) -> Iterator[str]:
    """Yields where ids are left in a table, as text."""
    tree, found = seen
    if found:
        rows, several = sum(each.rows for each in found.values()), len(tree.holding(found))
        yield f"{rows:,} rows have an id, in files or manifests of {several:,} snapshots"
