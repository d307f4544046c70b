"""`scripts/bench [NAME...]`: runs benchmarks one after the other and prints their tables as Markdown."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import (
    backlog,
    bootstrapping,
    copying,
    decoding,
    distributing,
    expiring,
    following,
    gatewaying,
    growing,
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
    replaying,
    scanning,
    serving,
    switching,
    transacting,
    translating,
)
from benchmarks.measure import machine, record
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
    "purge": purging.run,
    "iceberg": translating.run,
    "acid": transacting.run,
    "formats": mingling.run,
    "tables": many_tables.run,
    "growth": growing.run,
    "backlog": backlog.run,
    "serve": serving.run,
    "ingest": ingesting.run,
    "ingest-jobs": planning.run,
}
DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"


def main() -> None:
    collect_rarely()  # as the command line does; for the yardsticks too
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures replicator against plain yardsticks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; none: all of them")
    size = "full takes about an hour, 15 GB and 1.3 million inodes"
    parser.add_argument("--size", choices=("small", "full"), default="small", help=size)
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of which the medians count")
    parser.add_argument("--directory", type=Path, help="where to work; a fresh directory is made in it and removed")
    parser.add_argument("--tables", metavar="N,N...", help="of `tables`: how many, one warehouse after the other")
    parser.add_argument("--partitions", type=int, help="of `tables`: in each table")
    parser.add_argument("--hive", help="of `tables`: version of the metastores")
    parser.add_argument("--record", action="store_true", help="put the tables into docs/performance.md")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # metastores are stopped and directories removed then too
    print(f"On {machine()}.", flush=True)
    given = {"tables": asked.tables, "partitions": asked.partitions, "hive": asked.hive}
    for name in asked.names or BENCHMARKS:
        more = {key: value for key, value in given.items() if value and name == "tables"}
        command = f"scripts/bench {name} --size {asked.size} --runs {asked.runs}"
        command += "".join(f" --{key} {value}" for key, value in more.items())
        print(f"\n## {name}\n\n`{command}`\n", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="replicator-bench-", dir=asked.directory) as directory:
            outcome = BENCHMARKS[name](asked.size, asked.runs, Path(directory), **more)
        print(outcome.markdown(), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s in all", file=sys.stderr, flush=True)
        if asked.record:
            record(DOCUMENT, f"{name} on {asked.hive}" if "hive" in more else name, asked.size, command, outcome)


if __name__ == "__main__":
    main()
