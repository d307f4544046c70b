"""Checks of a policy, before its first run and at any time. Here: their findings, the worst of several, and the line
for Nagios. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Health = Literal["ok", "warning", "critical", "unknown"]

NAGIOS: dict[Health, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
"""The exit codes of a Nagios plugin."""

_GRAVITY: list[Health] = ["ok", "warning", "unknown", "critical"]  # a check that failed may hide anything
_FORBIDDEN = str.maketrans({"|": "/", "\n": " ", "\r": " "})  # a bar begins the metrics, and there is one line


@dataclass(frozen=True)
class Figure:
    """A metric for a graph. `unit`: s, B or empty; `warning` and `critical`: the bounds of its evaluation."""

    label: str
    value: float
    unit: str = ""
    warning: float | None = None
    critical: float | None = None


@dataclass(frozen=True)
class Finding:
    """The result of one check. `unknown`: it could not be carried out; `hint`: the next action, empty without one."""

    name: str
    health: Health
    text: str
    hint: str = ""
    figures: tuple[Figure, ...] = ()


def worst(healths: Iterable[Health]) -> Health:
    """Returns the gravest; ok for none."""
    return max(healths, key=_GRAVITY.index, default="ok")


def nagios_line(policy: str, findings: Sequence[Finding]) -> str:
    """Returns `REPLICATOR <STATE> - <policy>: <problems> | <metrics>`."""
    state = worst(finding.health for finding in findings)
    wrong = [finding for health in reversed(_GRAVITY[1:]) for finding in findings if finding.health == health]
    reported = "; ".join(f"{finding.name}: {finding.text}" for finding in wrong) or f"{len(findings)} checks passed"
    figures = " ".join(_figure(figure) for finding in findings for figure in finding.figures)
    return _plain(f"REPLICATOR {state.upper()} - {policy}: {reported}") + (f" | {figures}" if figures else "")


def nagios_failure(message: str) -> str:
    """Returns the line of a check that failed; its exit code is 3."""
    return _plain(f"REPLICATOR UNKNOWN - {message}")


def _figure(figure: Figure) -> str:
    """Returns 'label'=value[unit];[warning];[critical]"""
    label = figure.label.replace("'", "").replace("=", "")
    bounds = ";".join("" if bound is None else f"{bound:g}" for bound in (figure.warning, figure.critical))
    return f"'{label}'={_number(figure.value)}{figure.unit};{bounds}".rstrip(";")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}"


def _plain(text: str) -> str:
    return text.translate(_FORBIDDEN)
