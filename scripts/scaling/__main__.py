"""`scripts/scale`: measures costs, checks the model against the runs, and answers for the fleet; tables in Markdown."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import machine

from scaling import answers, costs


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/scale", description="A fleet, simulated from measured costs.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    measure = verbs.add_parser("measure", help="run increments of three sizes; records their costs")
    measure.add_argument("--sizes", default=",".join(map(str, costs.SIZES)), help="events, the smallest first")
    measure.add_argument("--directory", type=Path, help="where to work")
    verbs.add_parser("check", help="predict the larger runs by costs of the smallest, and show the errors")
    answer = verbs.add_parser("fleet", help="size the fleet, and simulate it")
    answer.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    match asked.verb:
        case "measure":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            with tempfile.TemporaryDirectory(prefix="replicator-scale-", dir=asked.directory) as place:
                sizes = [int(each) for each in asked.sizes.split(",")]
                found = costs.measured(sizes, Path(place), lambda text: print(text, file=sys.stderr, flush=True))
            costs.write(costs.MEASURED, machine(), costs.start_of_a_process(), found)
        case "check":
            print(answers.check(costs.read(costs.MEASURED)[1]).markdown())
        case "fleet":
            start, increments = costs.read(costs.MEASURED)
            prices = replace(answers.price(increments), start=start)
            print(answers.sizes_of(prices).markdown(), end="\n\n", flush=True)
            for table in (answers.days, answers.weekend, answers.sensitivity, answers.levers):
                print(table(prices, asked.seed).markdown(), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
