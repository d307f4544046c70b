"""`scripts/bench [NAME...]`: runs benchmarks one after the other and prints their tables as Markdown."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import replicator
from benchmarks import (
    backlog,
    bootstrapping,
    comparing,
    copying,
    cycling,
    decoding,
    distributing,
    expiring,
    following,
    gatewaying,
    growing,
    hive_repl,
    housekeeping,
    idling,
    ingesting,
    keeping,
    loading,
    many_tables,
    memory,
    mingling,
    planning,
    purging,
    removing,
    replaying,
    restoring,
    scanning,
    serving,
    switching,
    transacting,
    translating,
)
from benchmarks.measure import Outcome, machine, record
from replicator.cli.main import collect_rarely

BENCHMARKS = {
    "copy": copying.run,
    "hdfs": distributing.run,
    "hdfs-idle": idling.run,
    "bootstrap": bootstrapping.run,
    "load": loading.run,
    "decode": decoding.run,
    "memory": memory.run,
    "scan": scanning.run,
    "expire": expiring.run,
    "gateway": gatewaying.run,
    "keep": keeping.run,
    "replay": replaying.run,
    "follow": following.run,
    "switch": switching.run,
    "housekeeping": housekeeping.run,
    "remove": removing.run,
    "restore": restoring.run,
    "purge": purging.run,
    "iceberg": translating.run,
    "acid": transacting.run,
    "formats": mingling.run,
    "tables": many_tables.run,
    "repl": hive_repl.run,
    "growth": growing.run,
    "backlog": backlog.run,
    "cycle": cycling.run,
    "serve": serving.run,
    "ingest": ingesting.run,
    "ingest-jobs": planning.run,
}
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "performance.md"


def main() -> None:
    collect_rarely()  # as the command line does; for the yardsticks too
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures replicator against plain yardsticks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; none: all of them")
    size = "full takes several hours, 15 GB and 1.3 million inodes"
    parser.add_argument("--size", choices=("small", "full"), default="small", help=size)
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of which the medians count")
    parser.add_argument("--directory", type=Path, help="where to work; a fresh directory is made in it and removed")
    parser.add_argument("--tables", metavar="N,N...", help="of `tables`: how many, one warehouse after the other")
    parser.add_argument("--partitions", type=int, help="of `tables`: in each table")
    parser.add_argument("--hive", help="of `tables`: version of the metastores")
    parser.add_argument("--record", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--json", action="store_true", help="print the tool's seconds as JSON instead of tables")
    some = f"run the small {', '.join(comparing.DEFAULT)} (or NAMEs) of this checkout and of this revision in turns"
    parser.add_argument("--compare", metavar="BASE", help=f"{some}; exit 1 if something became slower")
    parser.add_argument("--rounds", type=int, default=comparing.ROUNDS, help="of --compare, of each checkout")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # metastores are stopped and directories removed then too
    if asked.compare:
        sys.exit(_compare(asked))
    if asked.json:
        with contextlib.redirect_stdout(sys.stderr):
            seconds = {name: _run(name, asked).figures.seconds for name in asked.names}
        print(json.dumps({"code": replicator.__file__, "seconds": seconds}))
        return
    print(f"On {machine()}.", flush=True)
    for name in asked.names or BENCHMARKS:
        command = f"scripts/bench {name} --size {asked.size} --runs {asked.runs}"
        command += "".join(f" --{key} {value}" for key, value in _more(name, asked).items())
        print(f"\n## {name}\n\n`{command}`\n", flush=True)
        outcome = _run(name, asked)
        print(outcome.markdown(), flush=True)
        if asked.record:
            title = f"{name} on {asked.hive}" if "hive" in _more(name, asked) else name
            record(DOCUMENT, title, asked.size, command, outcome)


def _more(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    given = {"tables": asked.tables, "partitions": asked.partitions, "hive": asked.hive}
    return {key: value for key, value in given.items() if value and name == "tables"}


def _run(name: str, asked: argparse.Namespace) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="replicator-bench-", dir=asked.directory) as directory:
        outcome = BENCHMARKS[name](asked.size, asked.runs, Path(directory), **_more(name, asked))
    print(f"{name}: {time.monotonic() - began:.0f} s in all", file=sys.stderr, flush=True)
    return outcome


def _compare(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="replicator-compare-", dir=asked.directory) as place:
        here = comparing.Checkout("this checkout", ROOT)
        try:
            base = comparing.exported(ROOT, asked.compare, Path(place, "base"))
            return comparing.compare(base, here, asked.names or comparing.DEFAULT, asked.rounds, Path(place))
        except comparing.NotComparable as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    main()
