"""The table feature x server: every feature made on one server, replicated to another, and looked at there.

Run by `scripts/compatibility` (all pairs, writes docs/compatibility.md) and by a test (some of them).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from command_line import Answer, command
from features import Feature
from hive_home import Home, Unavailable, client_of
from newer_features import ALL

from replicator.metastore.embedded.running import Running
from replicator.replay.server_rules import LACKS, RULES

HIVES = ("2.3", "3.1", "4.0", "4.2")
REPLICATED, NAMED, ABSENT = "replicated", "named", "not there"
"""What is good; anything else that an outcome says is a fault."""


@dataclass
class Source:
    """A server with the databases of some features, and a root that captures them.
    `there`: made on this server. `prefix`: of the databases' names."""

    running: Running
    here: Path
    there: list[Feature] = field(default_factory=list)
    prefix: str = "c"
    dumped: dict[str, Answer] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return self.running.hive

    def db(self, feature: Feature) -> str:
        return f"{self.prefix}{self.version.replace('.', '')}_{feature.name}"

    @contextlib.contextmanager
    def home(self, feature: Feature) -> Iterator[Home]:
        with client_of(self.running) as client:
            yield Home(self.running, client, self.db(feature))

    def make(self, features: Iterable[Feature]) -> None:
        for feature in features:
            with self.home(feature) as home:
                try:
                    feature.make(home)
                except Unavailable:
                    continue
            self.there.append(feature)

    def change(self) -> None:
        for feature in self.there:
            if feature.change is not None:
                with self.home(feature) as home:
                    feature.change(home)

    def drop(self) -> None:
        for feature in self.there:
            with self.home(feature) as home:
                if feature.drop is not None:
                    feature.drop(home)

    def dump(self, name: str, since: str | None = None) -> Path:
        """A dump of all of it, in a directory of this name."""
        out = self.here / name
        databases = [word for feature in self.there for word in ("--db", self.db(feature))]
        begin = ["--since", str(self.here / since)] if since else []
        if self.version in ("2.3", "3.1"):  # they write no events of statistics
            begin.append("--deep")
        self.dumped[name] = command(
            "dump", "--source", self.running.uri, "--cmroot", str(self.here / "cmroot"), *databases, *begin,
            "--out", str(out), "--engine", "local",
        )  # fmt: skip
        assert self.dumped[name].code in (0, 3), self.dumped[name]
        return out


@dataclass
class Pair:
    """A source whose databases are replicated to a target, by other names. One server may be both."""

    source: Source
    target: Running

    def db(self, feature: Feature) -> str:
        return f"r_{self.source.db(feature)}"

    @property
    def _renames(self) -> list[str]:
        return [
            word for each in self.source.there for word in ("--rename-db", f"{self.source.db(each)}={self.db(each)}")
        ]

    def load(self, dump: Path) -> Answer:
        return command(
            "load", str(dump), "--target", self.target.uri, *self._renames, "--engine", "local",
            "--target-cmroot", str(self.source.here / f"target-{self.target.hive}"),
        )  # fmt: skip

    def verify(self) -> Answer:
        databases = [word for feature in self.source.there for word in ("--db", self.source.db(feature))]
        return command(
            "verify", "--source", self.source.running.uri, "--target", self.target.uri, *databases, *self._renames,
            "--engine", "local",
        )  # fmt: skip

    def outcomes(self, name: str) -> dict[str, str]:
        """Of every feature that the source has, after the dump of this name is loaded."""
        loaded, verified = self.load(self.source.here / name), self.verify()
        answers = [self.source.dumped[name], loaded, verified]
        return {feature.name: self._outcome(feature, answers) for feature in self.source.there}

    def _outcome(self, feature: Feature, answers: Sequence[Answer]) -> str:
        failed = [each for each in answers if each.error]
        if failed:
            return f"failed: {failed[0].message[:300]}"
        differing = [each for each in answers[-1].output["differences"] if self._is_of(feature, each)]
        if differing:
            return f"differs: {differing[:3]}"
        named = [answer for answer in answers if any(map(partial(self._is_of, feature), _named(answer)))]
        for answer in named:
            if answer.code != 3 and not (answer is answers[-1] and answer.output["differences"]):
                return f"lost: named with exit code {answer.code}: {_named(answer)[:3]}"
        if named and answers[-1] not in named:
            return f"lost: named by the load or the dump, and verify says nothing of {self.source.db(feature)}"
        look = (feature.rest or feature.shown) if named else feature.shown
        with self.source.home(feature) as home, client_of(self.target) as client:
            wanted, found = look(home), look(Home(self.target, client, self.db(feature)))
        if wanted != found:
            return f"lost: {wanted} but {found}"
        return NAMED if named else REPLICATED

    def _is_of(self, feature: Feature, said: dict[str, Any]) -> bool:
        return str(said["object"]).partition(".")[0] == self.source.db(feature)


def _named(answer: Answer) -> list[dict[str, Any]]:
    return list(answer.output.get("not_replicated", ()))


def both(bootstrap: str, increment: str) -> str:
    """What became of a feature in both: what is no good in either, or else named in either."""
    for outcome in (bootstrap, increment):
        if outcome not in _SIGNS:
            return outcome
    return NAMED if NAMED in (bootstrap, increment) else increment


def observe(
    servers: Callable[..., Running],
    here: Path,
    sources: Sequence[str] = HIVES,
    targets: Sequence[str] = HIVES,
    features: Sequence[Feature] = ALL,
) -> dict[tuple[str, str, str], str]:
    """(feature, source, target) -> what became of it, in the bootstrap and in the increment after it."""
    found: dict[tuple[str, str, str], str] = {}
    for version in sources:
        source = Source(servers(version), here / version)
        source.make(features)
        source.dump("first")
        pairs = [Pair(source, servers(target, *_apart(version, target))) for target in targets]
        first = [pair.outcomes("first") for pair in pairs]
        source.change()
        source.dump("second", since="first")
        for pair, before in zip(pairs, first, strict=True):
            after = pair.outcomes("second")
            for feature in features:
                outcome = both(before.get(feature.name, ABSENT), after.get(feature.name, ABSENT))
                found[feature.name, version, pair.target.hive] = outcome
        source.drop()
    return found


def _apart(source: str, target: str) -> tuple[str, ...]:
    """A server of Hive 2.3 or 3.1 has each name of a constraint once, so it is not its own replica."""
    return ("target",) if source == target and source in ("2.3", "3.1") else ()


# ---- the table ------------------------------------------------------------------------------------------------------

_SIGNS = {REPLICATED: "yes", NAMED: "named", ABSENT: "-"}


def as_table(found: dict[tuple[str, str, str], Any], features: Sequence[Feature] = ALL) -> str:
    """Markdown: a row for each feature, a column for each source; a cell says it for all targets, or for each."""
    sources = list(dict.fromkeys(source for _, source, _ in found))
    targets = list(dict.fromkeys(target for _, _, target in found))
    lines = ["| feature | " + " | ".join(f"from {each}" for each in sources) + " |", "|---" * (len(sources) + 1) + "|"]
    for feature in features:
        cells = [_cell({target: found[feature.name, source, target] for target in targets}) for source in sources]
        lines.append(f"| {feature.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(by_target: dict[str, str]) -> str:
    signs = {target: sign(outcome) for target, outcome in by_target.items()}
    if len(set(signs.values())) == 1:
        return next(iter(signs.values()))
    return "; ".join(
        f"{sign} to {', '.join(t for t in signs if signs[t] == sign)}" for sign in dict.fromkeys(signs.values())
    )


def faults(found: dict[tuple[str, str, str], str]) -> list[str]:
    """What is neither replicated, nor named, nor lacking on the source."""
    return [
        f"{feature} {source} -> {target}: {outcome}"
        for (feature, source, target), outcome in found.items()
        if outcome not in _SIGNS
    ]


BEGIN, END = "<!-- written by scripts/compatibility -->\n", "<!-- to here -->\n"
ON_DERBY = "All servers kept their data in Derby.\n"
ON_BOTH = "All servers kept their data in Derby, and in another run in PostgreSQL: both gave this table.\n"


def with_table(page: str, table: str) -> str:
    """The page with this table between its two marks, and where its servers kept their data. Of PostgreSQL it says
    what it said, if the table is still the same."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    stores = ON_BOTH if f"\n{table}\n{ON_BOTH}" in page else ON_DERBY
    return f"{before}{BEGIN}\n{table}\n{stores}\n{END}{after}"


def with_postgres(page: str) -> str:
    """The page, when all that its table says was seen on PostgreSQL, too."""
    return page.replace(ON_DERBY, ON_BOTH)


def expected(page: str, feature: Feature, source: str, target: str) -> str:
    """What the page's table says of a pair; nothing for a feature without a row."""
    rows = [line.strip("|\n ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    columns = next(row for row in rows if row[0] == "feature")
    row = next((row for row in rows if row[0] == feature.title), None)
    cell = row[columns.index(f"from {source}")] if row else ""
    for part in cell.split("; "):
        sign, _, targets = part.partition(" to ")
        if not targets or target in targets.split(", "):
            return sign
    return ""


def otherwise(page: str, found: dict[tuple[str, str, str], str], features: Sequence[Feature]) -> list[str]:
    """Cells that the page tells otherwise."""
    by_name = {feature.name: feature for feature in features}
    said = {key: expected(page, by_name[key[0]], *key[1:]) for key in found}
    return [f"{' '.join(key)}: the page says {said[key]}" for key in found if sign(found[key]) != said[key]]


def sign(outcome: str) -> str:
    """Of one that is no good: its first word (lost, differs, failed)."""
    return _SIGNS.get(outcome) or f"**{outcome.partition(':')[0]}**"


def rules_table() -> str:
    """What is no difference, as Markdown."""
    lines = ["| what | servers | why |", "|---|---|---|"]
    lines += [f"| {rule.what} | {', '.join(rule.servers)} | {rule.reason} |" for rule in RULES]
    return "\n".join(lines) + "\n"


def lacks_table() -> str:
    """What some servers cannot store, as Markdown."""
    lines = ["| what | servers | why |", "|---|---|---|"]
    lines += [f"| {rule.what} | {', '.join(rule.servers)} | {rule.reason} |" for rule in LACKS]
    return "\n".join(lines) + "\n"
