"""Commands of the program as processes, and a search for secrets in all that they write, leave and show."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from waiting import eventually


def run(here: Path, *arguments: str, secrets: Mapping[str, bytes], env: Mapping[str, str] = {}) -> int:
    """The exit code. What is said is in files below `here`, and so is all that is temporary. Meanwhile no process has a
    secret in its arguments."""
    (here / "tmp").mkdir(parents=True, exist_ok=True)
    number = len(list(here.glob("said-*.out")))
    out, err = here / f"said-{number}.out", here / f"said-{number}.err"
    command = [sys.executable, "-m", "replicator.cli.main", *arguments]
    with out.open("wb") as to, err.open("wb") as errors:
        done = subprocess.Popen(command, stdout=to, stderr=errors, env={**os.environ, "TMPDIR": f"{here}/tmp", **env})

        def ended_and_showed_none() -> bool:
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                assert not _found(_bytes(place), secrets), f"in the arguments of a process of {arguments}"
            return done.poll() is not None

        try:
            eventually(ended_and_showed_none, lambda: said(here)[-3000:])
        finally:
            done.kill()
            done.wait()
    return done.returncode


def replicated(config: Path, here: Path, code: int, **secrets: str | bytes) -> str:
    """What capture, dump, sync (all end with `code`) and check of the policy `west` (see `secured.replicates`) say, of
    whom all secrets are unknown."""
    known = {name: value.encode() if isinstance(value, str) else value for name, value in secrets.items()}
    begin, number = ("--config", str(config), "--verbose", "--log-level", "debug"), len(list(here.glob("said-*")))
    db = tomllib.loads(config.read_text())["policies"]["west"]["databases"]
    source = ("--json", "--source", "prod", "--db", db, "--cmroot", f"{here}/cm")
    for command in (
        ("capture", *source),
        ("dump", *source, "--out", f"{here}/out-{number}"),
        ("sync", "west", "--json"),
    ):
        assert run(here, *begin, *command, secrets=known) == code, said(here)[-3000:]
    run(here, *begin, "check", "west", secrets=known)
    search(here, known)
    return said(here)


def said(here: Path) -> str:
    return "".join(each.read_text() for each in sorted(here.glob("said-*")))


def search(here: Path, secrets: Mapping[str, bytes], *besides: Path) -> None:
    """In every file below a directory, but `besides`."""
    looked = 0
    for place in here.rglob("*"):
        if place.is_file() and place not in besides:
            looked += 1
            assert not (found := _found(_bytes(place), secrets)), f"{found} in {place}"
    assert looked


def _found(text: bytes, secrets: Mapping[str, bytes]) -> list[str]:
    return [name for name, secret in secrets.items() if any(each in text for each in _written(secret))]


def _written(secret: bytes) -> Iterator[bytes]:
    """As it is, in URLs, as hexadecimal digits and as base64."""
    yield from (secret, quote(secret).encode(), secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))


def _bytes(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
