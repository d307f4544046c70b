"""Why a dataset has the settings it has: which file of the store gave each value, and which values it hides. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from replicator.core.report import Rows
from replicator.lifecycle.retention.config.config_store import Resolved, text_of
from replicator.lifecycle.retention.config.hocon.hocon_values import Fields, Origin, Raw, Scalar
from replicator.lifecycle.retention.config.job_settings import Settings, shown


@dataclass(frozen=True)
class ExplainedValue:
    """One value. `at`: where it is written; `through`: where the `${...}` stands that led there; `hides`: where weaker
    nodes set the same key. `far`: the store's root won over a node that is nearer to the dataset."""

    key: str
    value: str
    at: str
    through: str | None = None
    hides: list[str] = field(default_factory=list)
    far: bool = False


@dataclass(frozen=True)
class Explained(Rows):
    """`nodes`: the keys that values were taken from, strongest first, each with whether it has values of its own."""

    listed = "values"
    path: str
    store: str | None
    version: str | None
    nodes: list[str]
    values: list[ExplainedValue]
    warnings: list[str]
    status: str = "explained"


def explain_key(resolved: Resolved, path: str, store: str, version: str) -> Explained:
    """What the config store says about a key."""
    reported = [
        _reported(resolved, path_, value.origin, shown(value), value) for path_, value in resolved.settings.leaves()
    ]
    far = [each for each in reported if each.far]
    warnings = [
        f"{each.key}: the store's root decides ({each.at}), though a nearer key sets it too ({each.hides[0]})"
        for each in far
    ]
    names = [text_of(node.key) + ("" if node.main.fields or node.includes else " (no file)") for node in resolved.nodes]
    return Explained(path, store, version, names, reported, warnings)


def explain_job(settings: Settings, path: str) -> Explained:
    """The same where there is no store: all is the job file's."""
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
    """Where a node sets a path, or something that the path lies in and that is no object as written."""
    for name in path:
        if name.endswith("]"):  # in a list, which is replaced whole
            yield from _set_at(node, (name.partition("[")[0],))
            return
        if not isinstance(node, Fields) or name not in node.fields:
            if not isinstance(node, Fields):
                yield node.origin
            return
        node = node.fields[name]
    yield node.origin
