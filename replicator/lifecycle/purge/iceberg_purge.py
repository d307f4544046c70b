"""Purging one Iceberg table: search it, delete the rows on every branch, rewrite what still has them, expire the
snapshots that name such files, record. Has side effects, all by Iceberg itself in Spark.

    search      all files that any snapshot names, and manifests' bounds
    delete      `DELETE FROM` each branch that has a row with an id
    rewrite     files with deletes that apply to them; then manifests, whose entries about removed files have bounds
    record      checksums of all files that the expiry deletes and that have values of ids
    expire      the snapshots that name one of these files, by their ids; no others

Each step is a commit of Iceberg, and is decided from the table's present tree: a killed run continues where it was. A
concurrent writer's commit makes one of the two fail, and is never lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cmroot.errors import FormatError
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import FileState
from cmroot.store.place import is_local, join, located, normal, relative
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.engine import AutoEngine
from replicator.core.text import quoted_name
from replicator.errors import Error, ObjectNotFound
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.iceberg_search import MAIN, Finder, Held, Tree, Unsearchable
from replicator.lifecycle.purge.ids import KEYS, Ids, LossyIds, hadoop_place, keys_of, write_matched
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.state import TableDone, Unit
from replicator.lifecycle.purge.swapping import drop_column_statistics
from replicator.lifecycle.purge.table_files import Part
from replicator.lifecycle.purge.tables import TableWork
from replicator.lifecycle.removal.iceberg_actions import IcebergActions, shared, why_no_iceberg
from replicator.lifecycle.removal.removal import read_holds
from replicator.metastore.client import MetastoreReader

_REWRITE = {
    "delete-file-threshold": "1",  # every file to which deletes apply: they leave its bytes
    "min-input-files": str(2**31 - 1),  # and no file because of its size
    "min-file-size-bytes": "0",
    "max-file-size-bytes": str(2**62),
    "use-starting-sequence-number": "false",  # so that equality deletes, which have ids, apply to no file any more
    "remove-dangling-deletes": "true",
}


def plan_iceberg(work: TableWork, onboarded: Onboarded) -> TableDone:
    """Reports what a run would do. Writes nothing."""
    done = TableDone(onboarded.name, partitions=1)
    found = _found(work, onboarded, done)
    if found is not None and found[2]:
        unit = _unit(work, onboarded, *found[1:])
        done.units.append(msgspec.to_builtins(unit))
        done.rows_erased, done.swapped, done.files_rewritten = unit.matched, 1, unit.rewritten
        done.bytes_rewritten = unit.bytes
    return done


def purge_iceberg(work: TableWork, onboarded: Onboarded) -> TableDone:
    """Purges a table, or names what keeps it from that. May run twice."""
    done = TableDone(onboarded.name, partitions=1)
    before = work.directory.units().get((onboarded.name, ""))
    if (found := _found(work, onboarded, done)) is not None:
        unit = _continued(_unit(work, onboarded, *found[1:]), before)
        if found[2] or (before is not None and before.backup):
            done.add([_purged(work, onboarded, found[0], unit, done)])
    work.run = msgspec.structs.replace(work.run, tables=(*work.run.tables, done.table))
    work.directory.write_run(work.run)
    return done


def _found(work: TableWork, onboarded: Onboarded, done: TableDone) -> tuple[Finder, Tree, dict[str, Held]] | None:
    """Searches a table for the first time; None if it is not purged, with the reason in `done`."""
    finder = Finder(onboarded, work.ids, work.remover.engine)
    if lacking := why_no_iceberg(work.ids.session):
        done.gaps = [PurgeGap(onboarded.name, lacking)]
        return None
    try:
        with work.task("search", onboarded):
            tree, held = finder.look(work.metastore)
    except ObjectNotFound as error:
        done.error = f"dropped concurrently: {error.message}"
    except (LossyIds, FormatError) as error:
        done.error = str(error)
    except Unsearchable as error:
        done.gaps = [PurgeGap(onboarded.name, f"not searched: {error}")]
    else:
        done.gaps = [*finder.gaps, *_tagged(onboarded, tree, held)]
        return finder, tree, held
    return None


def _tagged(onboarded: Onboarded, tree: Tree, held: Mapping[str, Held]) -> Iterator[PurgeGap]:
    holding = tree.holding(held)
    for name in sorted(tree.tags):
        if tree.refs[name] in holding:
            why = f"the tag {name} names files with rows of ids, and a tag cannot be rewritten: drop it"
            yield PurgeGap(onboarded.name, why)


def _unit(work: TableWork, onboarded: Onboarded, tree: Tree, held: Mapping[str, Held]) -> Unit:
    """Returns the table's unit before a purge. rows: of the branch `main`; matched: of all branches and tags, each file
    once."""
    place, heads = tree.metadata["location"], tree.live(set(tree.refs.values()))
    shown = [each for path, each in held.items() if path in heads]
    older = len(tree.holding(held) - set(tree.refs.values()))
    reason = f"{sum(each.rows for each in shown):,} rows in {len(shown):,} files of branches and tags have an id"
    return Unit(
        table=onboarded.name,
        partition="",
        state="PENDING",
        time=work.remover.clock(),
        reason=f"{reason}; {len(held) - len(shown):,} older files and {older:,} older snapshots hold such rows",
        old=normal(place),
        files_before=len(heads),
        rewritten=len(shown),
        rows=_rows(tree),
        matched=sum(each.rows for each in shown),
        bytes=sum(heads[each.path].size for each in shown),
    )


def _rows(tree: Tree) -> int:
    now = tree.refs.get(MAIN)
    live = tree.live([now]) if now is not None else {}
    return sum(each.records for each in live.values() if each.content == 0)


def _continued(unit: Unit, before: Unit | None) -> Unit:
    """Returns the unit with the counts that the same run recorded before it was killed, or before this attempt."""
    if before is None:
        return unit
    ended = before.state == "DONE"
    matched = before.matched + unit.matched if ended else max(before.matched, unit.matched)
    rows, rewritten = max(before.rows, unit.rows), max(before.rewritten, unit.rewritten)
    return msgspec.structs.replace(
        unit, matched=matched, rows=rows, rewritten=rewritten, bytes=max(before.bytes, unit.bytes), backup=before.backup
    )


def _purged(work: TableWork, onboarded: Onboarded, finder: Finder, unit: Unit, done: TableDone) -> Unit:
    """Purges a table with files that hold ids. Returns its unit in its last state."""
    part = Part("", onboarded.table)
    work.directory.write_units([unit])
    work.remover.live.refresh()
    if why := work.forbidden_now(unit, part, read_holds(work.remover.root, work.remover.clock())):
        unit = unit.at("SKIPPED", work.remover.clock, reason=why)
        work.directory.write_units([unit])
        return unit
    lake, reason = Lake(work, onboarded, finder), ""
    for number in range(1, work.options.attempts + 1):
        unit = msgspec.structs.replace(unit, attempt=number)
        try:
            unit, reason = lake.purge(unit)
        except (FormatError, Unsearchable) as error:
            reason = str(error)
        except Error:
            raise
        except Exception as error:
            if not is_of_spark(error):
                raise
            reason = spark_failed(error).message
        if not reason:
            break
    done.gaps = done.gaps if lake.gaps is None else lake.gaps
    drop_column_statistics(work.metastore, onboarded.table, ())
    event = work.metastore.current_event_id()
    unit = unit.at("EXHAUSTED" if reason else "DONE", work.remover.clock, reason=reason, event=event)
    work.directory.write_units([unit])
    if unit.state == "DONE":
        work.record(unit)
    return unit


class Lake(IcebergActions):
    """The steps of a purge on one table. gaps: of the last attempt that ended."""

    def __init__(self, work: TableWork, onboarded: Onboarded, finder: Finder) -> None:
        self._work, self._onboarded, self._finder = work, onboarded, finder
        super().__init__(work.ids.session, onboarded.table.db, onboarded.table.name)
        self._recorded = set[str]()
        self.gaps: list[PurgeGap] | None = None

    def purge(self, unit: Unit) -> tuple[Unit, str]:
        """Makes one attempt. Returns the unit with new counts, and why ids are left, "" if none are. Raises Spark's
        error for a conflict with another writer, and what `Finder.look` does."""
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
        live = tree.live(set(tree.refs.values()))
        unit = msgspec.structs.replace(
            unit, files=len(live), rows_after=_rows(tree), bytes_after=sum(each.size for each in live.values())
        )
        self.gaps = [*self._finder.gaps, *_tagged(self._onboarded, tree, held)]
        return unit, self._left(tree, held)

    def _look(self) -> tuple[Tree, dict[str, Held]]:
        with self._work.task("search", self._onboarded):
            return self._finder.look(self._work.metastore)

    def _shared(self, paths: Iterable[str]) -> str:
        return shared(self._work.remover.live, self._onboarded.name, paths)

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

    def _note_matched(self, held: Mapping[str, Held]) -> None:
        """Writes which ids were found, before they are deleted."""
        keys = {key for each in held.values() for key in each.keys}
        if not keys:
            return
        place = self._work.directory.found(self._onboarded.name, 0)
        frame = self._session.createDataFrame([(key,) for key in keys], f"key {self._finder.type}")
        frame.write.mode("overwrite").parquet(hadoop_place(place))
        stamp = f"{self._onboarded.name}-{int(self._work.remover.clock() * 1000)}"
        write_matched(self._work.ids, self._onboarded, place, join(self._work.directory.matched, stamp))

    def _record(self, unit: Unit, tree: Tree, held: Mapping[str, Held], expired: Collection[int]) -> Unit:
        """Records the files that Iceberg is to delete; those with values of ids by their contents, too, which a
        certificate searches for. Returns the unit, which has no backup, but is known to certificates from here on."""
        rows = list[dict[str, Any]]()
        for each in held.values():
            if each.checksum and each.path not in self._recorded:
                rows.append(self._row(unit, each.path, each.size, each.checksum, each.rows))
        for path in (*tree.naming(held), *tree.statistics(tree.holding(held))):
            if path not in self._recorded:
                checksum, size = checksum_at(normal(path))
                rows.append(self._row(unit, path, size, checksum, 0))
        self._recorded |= {*held, *tree.naming(held), *tree.statistics(tree.holding(held))}
        rows += [self._row(unit, path, 0, None, 0) for path in tree.only_in(expired) - self._recorded]
        self._work.directory.write_files(rows)
        unit = unit.at("VERIFIED", self._work.remover.clock, backup="none")
        self._work.directory.write_units([unit])
        return unit

    def _row(self, unit: Unit, path: str, size: int, checksum: str | None, matched: int) -> dict[str, Any]:
        place = normal(path)
        state = FileState(relative(place, unit.old) or place, size, 0, "")
        return unit.file_row(state, matched=matched, checksum=checksum) | {"mtime_ns": None, "identity": None}

    def _remove_unnamed(self, unit: Unit, tree: Tree) -> bool:
        """Removes recorded files that no snapshot names any more, and that a killed expiry has left: by Iceberg's own
        action, which compares them with the table again. Returns False if there are none."""
        named, left = tree.named(), list[str]()
        for table in self._work.directory.files():
            for row in table.to_pylist():
                name = row["name"]
                path = name if name.startswith("/") or not is_local(name) else join(unit.old, name)
                if row["table"] == unit.table and path not in named and located(path).exists():
                    left.append(path)
        if not left:
            return False
        with suppress(FileNotFoundError):
            rows = [(hadoop_place(path), None) for path in left]
            frame = self._session.createDataFrame(rows, "file_path STRING, last_modified TIMESTAMP")
            frame = frame.selectExpr("file_path", "timestamp'1970-01-02 00:00:00' AS last_modified")
            self._actions().deleteOrphanFiles(self._loaded()).compareToFileList(frame._jdf).execute()
        return True


# ---- certificates ----------------------------------------------------------------------------------------------------


def rows_left(
    metastore: MetastoreReader, ids: Ids, table: Onboarded, engines: AutoEngine
) -> tuple[str, list[PurgeGap]]:
    """Returns how many rows of a table's files have an id, as text, "" for none, and the gaps. Reads only."""
    finder = Finder(table, ids, engines)
    try:
        tree, found = finder.look(metastore)
    except (Unsearchable, FormatError) as error:
        return "", [PurgeGap(table.name, f"not searched: {error}")]
    if not found:
        return "", finder.gaps
    rows, several = sum(each.rows for each in found.values()), len(tree.holding(found))
    return f"{rows:,} rows have an id, in files or manifests of {several:,} snapshots", finder.gaps
