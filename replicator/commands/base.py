"""Verbs and their options: a frozen value per command, and a function from that value to a report.

@dataclass(frozen=True, kw_only=True)
class CountOptions(Options):
    cmroot: str

@verb(CountOptions)
def count(options: CountOptions) -> Counted: ...

count(cmroot="/w/cmroot")                     # Python: the arguments are the options' fields
count.run(CountOptions(cmroot="/w/cmroot"))   # for a caller that has the options already
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, Protocol, Self, TypeVar, cast, get_type_hints

from cmroot.root import ChangeRoot, create_or_open, looked_at, open_existing
from cmroot.store.checksum import FLOW
from cmroot.store.drivers import VARIABLE, as_text, use
from replicator.captures.dumps.layout import Keys, read_keys
from replicator.core.config import BRAKE, Brake, Config, brake_of, read_config
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.option import Bandwidth, Bytes, Share, Where, check, declared_fields, opt, python_only, settled
from replicator.core.runtime import JOBS, Progress, Runtime, Silent
from replicator.core.spark import SparkEngine
from replicator.errors import UsageError
from replicator.metastore.connection import limit_metastores
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.metastore.traffic import Limit

P = ParamSpec("P")
O = TypeVar("O", bound="Options")  # noqa: E741
R = TypeVar("R", covariant=True)

EngineGiven = AutoEngine | Literal["auto", "local", "spark"] | None
"""auto, local, spark; or engines that the caller has opened."""

CATALOGS = {"source": "catalog", "metastore": "catalog", "target": "target_catalog"}
"""Fields that give a metastore's catalog, by those that give the metastore."""

ENGINES = ("auto", "local", "spark")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of every command."""

    zone: ClassVar[str] = ""  # of the Java that Spark runs in; empty: the machine's
    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields by the names that they had before, which work and warn."""

    config: Annotated[
        Config | str | os.PathLike[str] | None,
        python_only(
            "The configuration, or its file; None: `replicator.toml` of the working directory, if it "
            "exists. Its metastores can be given by name."
        ),
    ] = None
    engine: Annotated[
        EngineGiven,
        opt(
            "Executor of listing, hashing and copying: local threads, Spark, or (auto) either by the amount of work.",
            default="auto",
        ),
    ] = None
    spark: Annotated[
        Any,
        python_only(
            "A SparkSession to use; None: the active one of this process, else one that is stopped at the end."
        ),
    ] = None
    master: Annotated[str | None, opt("Spark master; default: Spark's configuration, or local[*].", metavar="URL")] = (
        None
    )
    spark_conf: Annotated[Mapping[str, str], opt("Spark setting; repeatable.", metavar="KEY=VALUE")] = field(
        default_factory=dict
    )
    progress: Annotated[
        Progress | None, python_only("Receives the state of the work; None: no progress is reported.")
    ] = None

    def __post_init__(self) -> None:
        check(self)
        for name, text in settled(self).items():
            object.__setattr__(self, name, text)

    @functools.cached_property
    def settings(self) -> Config:
        """The configuration, read; from now on its limits of traffic and its endpoints of stores hold."""
        config = self.config
        if not isinstance(config, Config):
            config = read_config(None if config is None else Path(config))
        limit_metastores(
            (each.uri, Limit(each.max_connections, each.max_calls_per_second)) for each in config.metastores.values()
        )
        use(config.stores)
        return config

    def complete(self) -> Self:
        """The options with all that the caller has left to the configuration; a verb begins with them."""
        return self.in_catalogs()

    def in_catalogs(self) -> Self:
        """With metastores that are bound to the catalogs that are given."""
        bound: dict[str, Any] = {}
        for side, option in CATALOGS.items():
            given, catalog = getattr(self, side, None), getattr(self, option, None)
            if given and catalog:
                bound[side] = self.settings.metastore(given, catalog)
        return replace(self, config=self.settings, **bound) if bound else self

    @property
    def rate(self) -> int | None:
        """The bandwidth limit, of commands that copy (`Copying`)."""
        return None

    @property
    def teller(self) -> Progress:
        return self.progress or Silent()

    @contextmanager
    def connected(self, metastore: Where) -> Iterator[ThriftMetastore]:
        """Opens a metastore, as `Config.metastore` resolves it, for a block."""
        with connect(self.settings.metastore(metastore)) as client:
            yield client

    def keys(self, file: str | None) -> Keys | None:
        """Reads the keys of a file; None: of the file that `[dumps]` names, if any. Raises as `read_keys`."""
        given = self.settings.dumps.key_file if file is None else file
        return read_keys(given) if given else None

    @contextmanager
    def engines(self) -> Iterator[AutoEngine]:
        """Yields the caller's engines, or engines configured by [spark] that end with the block. Raises UsageError for
        an unknown name, and for both engines and a session."""
        if isinstance(self.engine, AutoEngine):
            if self.spark is not None:
                raise UsageError("engine and spark are both given", hint="give spark= to engines() instead")
            yield self.engine
        else:
            choice = self.engine or "auto"
            with engines(choice, self.master, self.own_spark, session=self.spark, zone=self.zone) as own:
                yield own

    @property
    def own_spark(self) -> dict[str, str]:
        """Settings for a Spark of our own."""
        stores = self.settings.stores
        told = {f"spark.executorEnv.{VARIABLE}": as_text(stores)} if stores else {}
        return {**told, **self.settings.spark, **self.spark_conf}

    @contextmanager
    def runtime(self, jobs: int = JOBS) -> Iterator[Runtime]:
        """`engines` and `teller`, for the length of a block. jobs: as of Runtime."""
        with self.engines() as engines, FLOW.limited(self.rate):
            yield Runtime(engines, self.teller, jobs=jobs)


@dataclass(frozen=True, kw_only=True)
class Copying(Options):
    """A limit of the bytes copied per second. Of several calls in one process, the last one's limit holds."""

    bandwidth: Annotated[
        Bandwidth | None,
        opt(
            "Copy at most this many bytes per second, such as 50MB, in all tasks together; default: that of "
            "the policy, else no limit."
        ),
    ] = None

    @property
    def rate(self) -> int | None:
        return self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Braked(Copying):
    """Limits of what a load may remove."""

    max_share: Annotated[
        Share | None,
        opt(
            "Refuse a load that would remove a larger share of the replica's bytes; default: that of [guard], else 0.5."
        ),
    ] = None
    max_bytes: Annotated[
        Bytes | None, opt("Refuse a load that would remove more; default: that of [guard], else 1TiB.")
    ] = None
    allow_removals: Annotated[bool, opt("Lift the removal limits for this run.")] = False
    brake: Annotated[
        Brake | None, python_only("These limits as one value, in place of those of [guard]; None: no limit.")
    ] = BRAKE

    @property
    def limits(self) -> Brake | None:
        """Returns the removal limit: these options, else [guard]. Raises ConfigError for an invalid size in [guard]."""
        if self.allow_removals:
            return None
        return self.brake if self.brake is not BRAKE else brake_of(self.settings.guard, self.max_share, self.max_bytes)


class Verb(Protocol[P, O, R]):
    """A command as a function of its options' fields; `run` takes the options as they are."""

    options: type[O]

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R: ...

    def run(self, options: O) -> R: ...


def verb(make: Callable[P, O]) -> Callable[[Callable[[O], R]], Verb[P, O, R]]:
    """Makes a function of options a verb: it takes the fields of `make`, a class of options, as its arguments, and
    shows them and their descriptions in `help()`."""

    former: Mapping[str, str] = getattr(make, "renamed", {})

    def decorate(run: Callable[[O], R]) -> Verb[P, O, R]:
        def begin(options: O) -> R:
            return run(options.complete())

        @functools.wraps(run)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            given: dict[str, Any] = dict(options)
            for old, new in former.items():
                if old in given:
                    warnings.warn(f"{old} of {run.__name__} is now {new}", DeprecationWarning, stacklevel=2)
                    given[new] = given.pop(old)
            return begin(cast("Callable[..., O]", make)(*arguments, **given))

        result = inspect.signature(run).return_annotation
        call.__signature__ = _signature(make).replace(return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(run.__doc__ or '')}\n\nArguments:\n\n{_described(make)}"
        call.run, call.options = begin, make  # type: ignore[attr-defined]
        return cast("Verb[P, O, R]", call)

    return decorate


def _signature(make: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a class of options, with the types of fields, without the declarations of options."""
    signature, types = inspect.signature(make), get_type_hints(make)
    fields = [each.replace(annotation=types[each.name]) for each in signature.parameters.values()]
    return signature.replace(parameters=fields)


def _described(kind: Any) -> str:
    """Returns the fields of a class of options with their descriptions."""
    lines = (f"{each.name}: {each.option.help}" for each in declared_fields(kind))
    return "\n".join(textwrap.fill(line, 116, subsequent_indent="  ") for line in lines)


@contextmanager
def engines(
    choice: str = "auto",
    master: str | None = None,
    spark: Mapping[str, str] | None = None,
    session: Any = None,
    zone: str = "",
) -> Iterator[AutoEngine]:
    """Yields engines for a block: `choice` is auto, local or spark. Spark is that of `session`, or the one that runs in
    this process, and continues after the block; otherwise it starts at its first use (`master`, `spark`: its settings;
    `zone`: the time zone of its Java, else the machine's), and ends with the block. Raises UsageError for another
    choice."""
    if choice not in ENGINES:
        raise UsageError(
            f"no engine {choice!r}", hint=f"engine is one of {', '.join(ENGINES)}, or a value that engines() returned"
        )

    def environment() -> Mapping[str, str]:
        return {**spark_environment(find_java(os.environ)), **({"TZ": zone} if zone else {})}

    engine = AutoEngine(LocalEngine(), SparkEngine(master, spark, environment, session), choice)
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def opened_root(cmroot: str, *, dry_run: bool, makes: bool = True) -> Iterator[tuple[ChangeRoot, list[str]]]:
    """Opens a root. Returns it with a warning for the report. makes: a run creates the root; otherwise it must exist. A
    dry run reads the root, or an empty one if it does not exist yet, with a warning. Raises NotWritable,
    FormatError."""
    if not dry_run:
        yield (create_or_open if makes else open_existing)(cmroot), []
        return
    with looked_at(cmroot) as (root, words):
        yield root, [words] if words else []


def names(given: str | Sequence[str]) -> list[str]:
    """Names of databases or tables as the metastore writes them, each once."""
    return list(dict.fromkeys(name.lower() for name in ([given] if isinstance(given, str) else given)))


def point(given: str | int | None) -> str | None:
    """An event id, a time or a dump's directory as the command line writes it."""
    return None if given is None else str(given)


def renames(given: Mapping[str, str] | Sequence[str]) -> list[tuple[str, str]]:
    """Databases' names on the target by those at the source, of a mapping or of "A=B" texts. Raises UsageError."""
    if isinstance(given, Mapping):
        return [(before.lower(), after.lower()) for before, after in pairs(given, "rename_db")]
    return _parse_pairs([text.lower() for text in given], "--rename-db")  # as metastores store names


def pairs(given: Mapping[str, str] | Sequence[str], option: str) -> list[tuple[str, str]]:
    """Places by places, of a mapping or of "A=B" texts. Raises UsageError, which names the option."""
    if not isinstance(given, Mapping):
        return _parse_pairs(given, option)
    if not all(before and after for before, after in given.items()):
        raise UsageError(f"{option} {dict(given)} leaves a side empty", hint="give its name on both sides")
    return list(given.items())


def _parse_pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Parses `A=B` pairs of an option. Raises UsageError for anything else, and for two different B of one A."""
    pairs: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        if not (before and equals and after):
            raise UsageError(
                f"{option} {text!r} is not of the form A=B", hint="A is the name at the source, B that on the target"
            )
        if pairs.setdefault(before, after) != after:
            raise UsageError(f"{option} is given twice for {before}: {pairs[before]} and {after}", hint="give it once")
    return list(pairs.items())
