"""Measuring: interleaved runs, medians, and tables that a person and docs/performance.md can read."""

from __future__ import annotations

import gc
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Timed = Callable[[int], float]  # of the run's number; returns the seconds that count


@dataclass
class Figures:
    """Seconds of the tool's own steps, which `--compare` compares; not of yardsticks. `CPU`: of this process, all
    threads."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def of(self, step: str, work: Callable[[], T]) -> T:
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        result = work()
        took, used = time.perf_counter() - began, time.process_time() - used
        self.seconds.setdefault(step, []).append(took)
        self.seconds.setdefault(f"{step}, CPU", []).append(used)
        return result

    def timed(self, step: str, work: Callable[[], object]) -> float:
        self.of(step, work)
        return self.seconds[step][-1]


@dataclass
class Outcome:
    """A benchmark's result: a table, and remarks below it."""

    headers: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)

    def markdown(self) -> str:
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([table, *self.remarks])


def interleaved(runs: int, contestants: Mapping[str, Timed]) -> dict[str, list[float]]:
    """Seconds of each contestant in each run. They take turns, and every second run in reverse order, so that
    whatever else the machine does meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(runs):
        names = list(contestants)
        for name in names if number % 2 == 0 else reversed(names):
            gc.collect()
            seconds[name].append(contestants[name](number))
    return seconds


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """The ratio of two medians, and the range of the ratios of single runs."""
    single = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return f"{median(numerators) / median(denominators):.2f} ({min(single):.2f} to {max(single):.2f})"


def s(values: Sequence[float]) -> str:
    return f"{median(values):.2f} s"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {platform.system()}"


def record(document: Path, name: str, size: str, command: str, outcome: Outcome) -> None:
    """Puts a result between its two comment lines in the document, in place of the one before."""
    text = document.read_text()
    begin, end = f"<!-- results: {name} {size} -->", f"<!-- end: {name} {size} -->"
    if begin not in text:
        raise SystemExit(f"{document} has no line {begin}")
    body = f"{begin}\n`{command}` on {machine()}, {time.strftime('%Y-%m-%d')}:\n\n{outcome.markdown()}\n{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    aside = document.with_suffix(".aside")
    aside.write_text(pattern.sub(lambda _: body, text))
    os.replace(aside, document)
