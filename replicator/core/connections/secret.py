"""Secrets by reference: `file:PATH`, `env:NAME` or `command:PROGRAM ARGUMENT...`. The configuration holds the
reference. Each use reads the secret again, and no message shows it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from replicator.errors import ConfigError

KINDS = ("file", "env", "command")
PATIENCE = 30  # seconds for a command


def is_reference(text: str) -> bool:
    kind, colon, rest = text.partition(":")
    return bool(colon and rest) and kind in KINDS


def read_secret(reference: str, name: str) -> str:
    """The first line of what it names. `name`: of the key, for the error. Raises ConfigError for a secret that is not
    there, or empty."""
    kind, _, place = reference.partition(":")
    try:
        text = {"file": _file, "env": _variable, "command": _output}[kind](place)
    except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{name}: cannot be read from {kind}:{place}: {why}", hint="check the reference") from None
    line = text.strip("\r\n").partition("\n")[0].rstrip("\r")
    if not line:
        raise ConfigError(f"{name}: {kind}:{place} is empty", hint="its first line is the secret")
    return line


def _file(place: str) -> str:
    return Path(place).expanduser().read_text(encoding="utf-8")


def _variable(place: str) -> str:
    return os.environ[place]


def _output(place: str) -> str:
    done = subprocess.run(
        shlex.split(place), stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=True, text=True
    )
    return done.stdout
