"""Datasets: what the finders of a job lead to, each with the settings that hold for it. Reads only.

A dataset that several finders or tags lead to is one dataset, with the settings of the first. What cannot be read of
one is reported and stops no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cmroot.store.place import is_local, join, normal, scheme, split_authority
from replicator.core.model import Table
from replicator.core.roles import follows, mark_of
from replicator.core.table_format import SAID, table_format
from replicator.errors import ConfigError, Error, UsageError
from replicator.lifecycle.retention.config.class_names import FINDERS, known
from replicator.lifecycle.retention.config.config_store import ConfigStore, Key, text_of
from replicator.lifecycle.retention.config.hocon.hocon_values import Origin
from replicator.lifecycle.retention.config.job_settings import Settings
from replicator.lifecycle.retention.globs import Found, glob, glob_regex
from replicator.lifecycle.retention.hive_tables import names_of, tables_of
from replicator.lifecycle.retention.job_file import STORE_URI, JobFile
from replicator.metastore.client import MetastoreReader

_FINDER = ("gobblin.retention.dataset.profile.class", "gobblin.retention.dataset.finder.class")
_PATTERN = ("gobblin.dataset.pattern", "gobblin.retention.dataset.pattern")


@dataclass(frozen=True)
class FileDataset:
    """A directory, or file. `key`: its path as the configuration spells it."""

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
    """What could not be looked at, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class DatasetFinder:
    """A dataset finder with the settings it reads."""

    kind: str
    settings: Settings
    tag: Key | None = None


def find_datasets(job: JobFile, metastore: MetastoreReader | None, root: str | None) -> Iterator[Dataset | Failed]:
    """`root`: what absolute paths of the configuration lie below; None: as `writer.fs.uri` says, else the local
    filesystem. Raises ConfigError when the job names no finder and no tag."""
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
    """The finders: one named by the job, or one for each key of the store that names a tag of the job."""
    named = job.settings.text(*_FINDER)
    if named:
        yield DatasetFinder(known(named, FINDERS, "dataset finder", job.settings.origin(*_FINDER)), job.settings)
        return
    tags = job.settings.texts("gobblin.retention.tag")
    if not tags:
        hint = (
            "set gobblin.retention.tag to a tag of the store"
            if job.store
            else f"{_FINDER[1]}, or {STORE_URI} and a tag"
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
    """A tag as a path of the store, or as a URI in it."""
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
            raise UsageError(f"{source.settings.name}: finds Hive tables", hint="name the metastore with --metastore")
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
        yield Failed(link, "a symbolic link: name the directory that it leads to")
    for path in found.unnamed:
        yield Failed(path, "stays: its name is not UTF-8, so no configuration can name it (rename it)")


def _paths(source: DatasetFinder, root: str, found: Found) -> Iterator[str]:
    if source.kind == "paths":
        full = "gobblin.configBased.fullDatasetPath"
        yield join(root or "/", source.settings.required(full)) if root else source.settings.required(full)
        return
    pattern = source.settings.required(*_PATTERN)
    if scheme(pattern) == "file" and not pattern.startswith(("/", "file:")):
        raise source.settings.wrong(_PATTERN[0], source.settings.find(*_PATTERN), "is relative: write the whole path")
    skip = _blacklist(source.settings)
    try:
        matches = glob(pattern if "://" in pattern or not root else _under(root, pattern), found)
        hits = 0
        for each in matches:
            hits += 1
            if not any(regex.search(_key(each.path, root)) for regex in skip):
                yield each.path
    except ValueError as error:
        raise source.settings.wrong(_PATTERN[0], source.settings.find(*_PATTERN), f"is no glob: {error}") from error
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
    """Patterns that a dataset's path must not hold anywhere."""
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
            raise settings.wrong(key, settings.find(key), f"is no pattern: {error}") from error
    return found


def _key(path: str, root: str) -> str:
    """A path as the configuration spells it: without its store, and without what it was put below."""
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
            if why := _foreign(table):
                yield Failed(f"{table.db}.{table.name}", why)
                continue
            settings = source.settings
            if from_store and job.store:
                settings = job.store.resolve(job.store.key(f"hive/{table.db}/{table.name}")).settings
            yield HiveDataset(table, settings)
        except Error as error:
            yield Failed(f"{table.db}.{table.name}", explained(error))
    if not found:
        yield Failed(str(asked.origin("hive.dataset") or Origin("hive.dataset", 0)), "matches no table")


def _foreign(table: Table) -> str:
    """Why partitions of a table cannot go with their files; nothing when they can."""
    format = table_format(table)
    if format == "acid":
        return f"{SAID[format]}: its partitions go with the transactions that wrote them; drop them in Hive"
    if format in SAID and format != "symlink":
        return f"{SAID[format]}: its own log says which files count, so remove its data with its own tools"
    return ""


def explained(error: Exception) -> str:
    """An error on one line, with what to do."""
    if isinstance(error, Error):
        return error.message + (f" ({error.hint})" if error.hint else "")
    return str(error)
