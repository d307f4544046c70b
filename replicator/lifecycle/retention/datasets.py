"""Datasets: the results of a job's finders, each with its settings. Reads only.

A dataset found by several finders or tags is one dataset, with the settings of the first. Errors of one dataset are
reported and do not stop the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cmroot.store.place import is_local, join, normal, scheme, split_authority
from replicator.core.formats import format_of
from replicator.core.grouping import batched
from replicator.core.model import Table
from replicator.core.not_replicated import Rows
from replicator.core.roles import follows, is_shadow, mark_of
from replicator.errors import ConfigError, Error, ObjectNotFound, UsageError
from replicator.lifecycle.retention.config_store import ConfigStore, Key, Resolved, Settings, shown, text_of
from replicator.lifecycle.retention.dataset_versions import Found, glob, glob_regex
from replicator.lifecycle.retention.hocon_values import Fields, Origin, Raw, Scalar
from replicator.lifecycle.retention.job_configuration import FINDERS, STORE_URI, JobFile, known
from replicator.metastore.client import MetastoreReader

_FINDER = ("gobblin.retention.dataset.profile.class", "gobblin.retention.dataset.finder.class")
_PATTERN = ("gobblin.dataset.pattern", "gobblin.retention.dataset.pattern")


@dataclass(frozen=True)
class FileDataset:
    """A directory or file. `key`: its path as written in the configuration."""

    path: str
    key: str
    settings: Settings
    kind: str = "glob"

    @property
    def name(self) -> str:
        return self.path


@dataclass(frozen=True)
class HiveDataset:
    table: Table
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.table.db}.{self.table.name}"


Dataset = FileDataset | HiveDataset


@dataclass(frozen=True)
class Failed:
    """A dataset that could not be examined, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class DatasetFinder:
    """A dataset finder with the settings it reads."""

    kind: str
    settings: Settings
    tag: Key | None = None


def find_datasets(job: JobFile, metastore: MetastoreReader | None, root: str | None) -> Iterator[Dataset | Failed]:
    """Yields the datasets of a job. `root`: prefix of absolute paths of the configuration; None: as in `writer.fs.uri`,
    else the local filesystem. Raises ConfigError if the job has neither a finder nor a tag."""
    seen: set[str] = set()
    for source in sources(job):
        if isinstance(source, Failed):
            yield source
            continue
        try:
            for dataset in _datasets(job, source, metastore, root):
                if isinstance(dataset, Failed) or dataset.name not in seen:
                    seen.add(dataset.name)
                    yield dataset
        except (Error, OSError) as error:
            yield Failed(source.settings.name, explained(error))


def sources(job: JobFile) -> Iterator[DatasetFinder | Failed]:
    """Yields the finders: the one named by the job, or one for each key of the store that includes a tag of the job."""
    named = job.settings.text(*_FINDER)
    if named:
        yield DatasetFinder(known(named, FINDERS, "dataset finder", job.settings.origin(*_FINDER)), job.settings)
        return
    tags = job.settings.texts("gobblin.retention.tag")
    if not tags:
        hint = (
            "set gobblin.retention.tag to a tag of the store"
            if job.store
            else f"set {_FINDER[1]}, or {STORE_URI} and a tag"
        )
        raise ConfigError(f"{job.place}: names neither a dataset finder nor a tag", hint=hint)
    if job.store is None:
        raise ConfigError(f"{job.place}: a tag needs a config store", hint=f"set {STORE_URI}")
    yield from _tagged(job.store, [_tag(job.store, tag) for tag in tags])


def _tagged(store: ConfigStore, tags: Iterable[Key]) -> Iterator[DatasetFinder | Failed]:
    seen: set[Key] = set()
    for tag in tags:
        importers = list(store.importers(tag))
        if not importers:
            yield Failed(text_of(tag), "no key of the store includes this tag")
        for key in importers:
            if key in seen:
                continue
            seen.add(key)
            try:
                settings = store.resolve(key).settings
                kind = known(
                    settings.required(*reversed(_FINDER)), FINDERS, "dataset finder", settings.origin(*_FINDER)
                )
                yield DatasetFinder(kind, settings, tag)
            except Error as error:
                yield Failed(text_of(key), explained(error))


def _tag(store: ConfigStore, text: str) -> Key:
    """Returns the key of a tag, given as a path of the store, or as a URI in it."""
    path = re.sub(r"^[\w-]+:(//[^/]*)?", "", text)
    above = split_authority(normal(store.place))[1].rpartition("/")[0]
    if path != text and f"{path}/".startswith(f"{above}/"):
        path = path[len(above) :]
        return tuple(name for name in path.split("/") if name)
    return store.key(path)


def _datasets(
    job: JobFile, source: DatasetFinder, metastore: MetastoreReader | None, root: str | None
) -> Iterator[Dataset | Failed]:
    if source.kind == "hive":
        if metastore is None:
            raise UsageError(
                f"{source.settings.name}: finds Hive tables, so it needs a metastore",
                hint="name the metastore with --metastore",
            )
        yield from _hive(job, source, metastore)
        return
    root = (
        root if root is not None else source.settings.text("writer.fs.uri") or job.settings.text("writer.fs.uri") or ""
    )
    found = Found()
    for path in _paths(source, root, found):
        key = _key(path, root)
        try:
            yield FileDataset(path, key, _settings(job, source, key), source.kind)
        except Error as error:
            yield Failed(path, explained(error))
    for link in found.links:
        yield Failed(link, "a symbolic link: name the directory it points to")
    for path in found.unnamed:
        yield Failed(path, "kept: its name is not UTF-8, so no configuration can name it (rename it)")


def _paths(source: DatasetFinder, root: str, found: Found) -> Iterator[str]:
    if source.kind == "paths":
        full = "gobblin.configBased.fullDatasetPath"
        yield join(root or "/", source.settings.required(full)) if root else source.settings.required(full)
        return
    pattern = source.settings.required(*_PATTERN)
    if scheme(pattern) == "file" and not pattern.startswith(("/", "file:")):
        raise source.settings.wrong(_PATTERN[0], source.settings.find(*_PATTERN), "is relative: write the full path")
    skip = _blacklist(source.settings)
    try:
        matches = glob(pattern if "://" in pattern or not root else _under(root, pattern), found)
        hits = 0
        for each in matches:
            hits += 1
            if not any(regex.search(_key(each.path, root)) for regex in skip):
                yield each.path
    except ValueError as error:
        raise source.settings.wrong(
            _PATTERN[0], source.settings.find(*_PATTERN), f"is not a valid glob: {error}"
        ) from error
    if not hits:
        raise source.settings.wrong(
            _PATTERN[0],
            source.settings.find(*_PATTERN),
            f"matches nothing: {pattern}" + (f" below {root}" if root else ""),
        )


def _under(root: str, pattern: str) -> str:
    literal = re.sub(r"([*?\[\]{}\\])", r"\\\1", root.rstrip("/"))
    return join(literal or "/", pattern)


def _blacklist(settings: Settings) -> list[re.Pattern[str]]:
    """Returns patterns that may not match anywhere in a dataset's path."""
    found = []
    keys = ("gobblin.retention.dataset.blacklist", "gobblin.dataset.blacklist")
    text, globbed = settings.text(*keys), settings.text("gobblin.dataset.glob.blacklist")
    if text == "":
        text = settings.text(keys[1])
    for key, each in ((keys[1], text), ("gobblin.dataset.glob.blacklist", globbed)):
        try:
            if each:
                found.append(re.compile(glob_regex(each) if "glob" in key else each))
        except (re.error, ValueError) as error:
            raise settings.wrong(key, settings.find(key), f"is not a valid pattern: {error}") from error
    return found


def _key(path: str, root: str) -> str:
    """Returns a path as the configuration writes it: without its store, and without the prefix."""
    if root and f"{normal(path)}/".startswith(f"{normal(root).rstrip('/')}/"):
        return normal(path)[len(normal(root).rstrip("/")) :] or "/"
    return split_authority(normal(path))[1] if not is_local(path) else normal(path)


def _settings(job: JobFile, source: DatasetFinder, key: str) -> Settings:
    if job.store is None:
        return source.settings
    if source.kind == "paths":
        return source.settings
    return job.store.resolve(job.store.key(key)).settings


def _hive(job: JobFile, source: DatasetFinder, metastore: MetastoreReader) -> Iterator[Dataset | Failed]:
    asked = job.settings if job.settings.find("hive.dataset") is not None else source.settings
    from_store = job.settings.truth("gobblin.config.management.store.enabled", default=False)
    folder = asked.text("hive.dataset.tableFolderAllowlistFilter")
    found = False
    followers: dict[str, str] = {}
    places = set[str]()
    for table in tables_of(metastore, names_of(asked), folder):
        found = True
        try:
            if table.db not in followers:
                followers[table.db] = follows(
                    table.db, mark_of(metastore.database(table.db).parameters, table.db), "run retention"
                )
                if followers[table.db]:
                    yield Failed(table.db, followers[table.db])
            if followers[table.db]:
                continue
            if why := format_of(table).no_retention:
                yield Failed(f"{table.db}.{table.name}", why)
                continue
            if format_of(table).expires and not format_of(table).has_tree and table.location in places:
                continue  # another name of the same log, such as those of a Hudi table that is merged on read
            places.add(table.location or "")
            settings = source.settings
            if from_store and job.store:
                settings = job.store.resolve(job.store.key(f"hive/{table.db}/{table.name}")).settings
            yield HiveDataset(table, settings)
        except Error as error:
            yield Failed(f"{table.db}.{table.name}", explained(error))
    if not found:
        yield Failed(str(asked.origin("hive.dataset") or Origin("hive.dataset", 0)), "matches no table")


def explained(error: Exception) -> str:
    """Returns an error on one line, with its hint."""
    if isinstance(error, Error):
        return error.message + (f" ({error.hint})" if error.hint else "")
    return str(error)


# ---- hive tables -----------------------------------------------------------------------------------------------------
# Tables selected by white and black lists. Reads only.


_TABLES = 500  # fetched at once


@dataclass(frozen=True)
class Names:
    """White and black lists, as `db.table1|table2,db2`: `*` is a wild card, everything else a regular expression for
    complete names. The black list has precedence; an empty white list accepts everything."""

    white: tuple[tuple[str, tuple[str, ...]], ...]
    black: tuple[tuple[str, tuple[str, ...]], ...]
    ignore_case: bool = True

    def accepts(self, db: str, table: str) -> bool:
        if self._any(self.black, db, table):
            return False
        return not self.white or self._any(self.white, db, table)

    def may_have(self, db: str) -> bool:
        """Returns True if a database may contain an accepted table."""
        if any(self._is(pattern, db) and "*" in tables for pattern, tables in self.black):
            return False
        return not self.white or any(self._is(pattern, db) for pattern, _ in self.white)

    def _any(self, entries: tuple[tuple[str, tuple[str, ...]], ...], db: str, table: str) -> bool:
        return any(self._is(one, db) and any(self._is(each, table) for each in tables) for one, tables in entries)

    def _is(self, pattern: str, name: str) -> bool:
        regex = re.compile(pattern.replace("*", ".*"), re.IGNORECASE if self.ignore_case else 0)
        return regex.fullmatch(name) is not None


def parse_names(white: str, black: str, *, ignore_case: bool = True, where: str = "") -> Names:
    """Parses both lists. Raises ConfigError for an entry with two dots, or an invalid regular expression."""
    return Names(_entries(white, where), _entries(black, where), ignore_case)


def _entries(text: str, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        db, dot, tables = each.partition(".")
        if "." in tables.replace(".*", "") or not db:
            raise ConfigError(f"{where}{each!r} is not db.table1|table2", hint="write one dot; * matches any name")
        names = tuple(name for name in tables.split("|") if name) if dot else ("*",)
        for pattern in (db, *names):
            try:
                re.compile(pattern.replace("*", ".*"))
            except re.error as error:
                raise ConfigError(
                    f"{where}{pattern!r} is not a valid pattern: {error}", hint="* matches any name"
                ) from error
        found.append((db, names or ("*",)))
    return tuple(found)


def names_of(job: Settings) -> Names:
    """Returns the tables that a job's `hive.dataset.*` keys select. Raises ConfigError if they select none, or name a
    class."""
    for key in ("hive.dataset.tableFilter", "org.apache.gobblin.config.management.datasetUriBuilderClass"):
        if job.find(key) is not None:
            raise job.wrong(key, job.find(key), "names a class, which cannot be run here: use white and black lists")
    ignore = job.truth("hive.dataset.whitelistBlacklist.ignoreCase", "whitelistBlacklist.ignoreCase", default=True)
    db = job.text("hive.dataset.database")
    if db is not None:
        pattern = job.text("hive.dataset.table.pattern") or "*"
        return parse_names(f"{db}.{pattern}", "", ignore_case=ignore, where="hive.dataset.database: ")
    white, black = (",".join(job.texts(f"hive.dataset.{kind}") or []) for kind in ("whitelist", "blacklist"))
    if not white and not black:
        raise job.missing("hive.dataset.whitelist")
    return parse_names(white, black, ignore_case=ignore, where="hive.dataset: ")


def tables_of(metastore: MetastoreReader, names: Names, folder: str | None) -> Iterator[Table]:
    """Yields the accepted tables, in batches. folder: `tableFolderAllowlistFilter`, for complete locations or for their
    paths without scheme and authority."""
    for db in filter(names.may_have, metastore.database_names()):
        with suppress(ObjectNotFound):  # dropped concurrently
            if is_shadow(metastore.database(db)):
                continue
            accepted = [name for name in metastore.table_names(db) if names.accepts(db, name)]
            for some in batched(accepted, _TABLES):
                for table in metastore.tables(db, some):
                    if folder is None or any(re.fullmatch(folder, each) for each in _written(table.location or "")):
                        yield table


def _written(location: str) -> tuple[str, str]:
    """Returns a location as the metastore has it, and its path."""
    return location, split_authority(location)[1] if location else ""


# ---- explain ---------------------------------------------------------------------------------------------------------
# Explanation of a dataset's settings: which file of the store set each value, and which values it hides. Pure.


@dataclass(frozen=True)
class ExplainedValue:
    """One value. `at`: where it is written; `through`: the location of the `${...}` that refers to it; `hides`: where
    weaker nodes set the same key. `far`: the store's root won over a node that is nearer to the dataset."""

    key: str
    value: str
    at: str
    through: str | None = None
    hides: list[str] = field(default_factory=list)
    far: bool = False


@dataclass(frozen=True)
class Explained(Rows):
    """The explained settings of a path. `nodes`: keys of their values, strongest first, marked if without a file."""

    listed = "values"
    path: str
    store: str | None
    version: str | None
    nodes: list[str]
    values: list[ExplainedValue]
    warnings: list[str]
    status: str = "explained"


def explain_key(resolved: Resolved, path: str, store: str, version: str) -> Explained:
    """Explains the settings of a key in the config store."""
    reported = [
        _reported(resolved, path_, value.origin, shown(value), value) for path_, value in resolved.settings.leaves()
    ]
    far = [each for each in reported if each.far]
    warnings = [
        f"{each.key}: the store's root takes precedence ({each.at}), though a nearer key sets it too ({each.hides[0]})"
        for each in far
    ]
    names = [text_of(node.key) + ("" if node.main.fields or node.includes else " (no file)") for node in resolved.nodes]
    return Explained(path, store, version, names, reported, warnings)


def explain_job(settings: Settings, path: str) -> Explained:
    """Explains the settings of the job file, without a store."""
    reported = [
        ExplainedValue(".".join(names), shown(value), str(value.origin), _through(value))
        for names, value in settings.leaves()
    ]
    return Explained(path, None, None, [], reported, [])


def _reported(resolved: Resolved, path: tuple[str, ...], origin: Origin, text: str, value: object) -> ExplainedValue:
    assigned = value.assigned if isinstance(value, Scalar) else None
    setting = [(node.key, where) for node in resolved.nodes for where in _set_at(node.main, path)]
    number = next((number for number, (_, where) in enumerate(setting) if where in (origin, assigned)), 0)
    winner, where = setting[number] if setting else ((), origin)
    through = assigned or (where if where != origin else None)
    hidden = [str(other) for key, other in setting[number + 1 :] if key != winner]
    nearer = any(key and resolved.key[: len(key)] == key for key, _ in setting)
    return ExplainedValue(
        ".".join(path), text, str(origin), str(through) if through else None, hidden, not winner and nearer
    )


def _through(value: object) -> str | None:
    return str(value.assigned) if isinstance(value, Scalar) and value.assigned else None


def _set_at(node: Raw, path: tuple[str, ...]) -> Iterator[Origin]:
    """Yields where a node sets a path, or a value above it that is not written as an object."""
    for name in path:
        if name.endswith("]"):  # in a list, which is replaced completely
            yield from _set_at(node, (name.partition("[")[0],))
            return
        if not isinstance(node, Fields) or name not in node.fields:
            if not isinstance(node, Fields):
                yield node.origin
            return
        node = node.fields[name]
    yield node.origin
