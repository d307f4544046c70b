"""A real Chromium for tests of pages, and axe-core, which finds what a person with a disability cannot use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from waiting import CEILING

from replicator.metastore.java import cache_directory, locked

AXE = "4.10.3"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; `chromium.new_context()` is one person's. No longer than its module: meanwhile the thread has an event
    loop at work, in which nobody else's can run."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    if not executable():
        pytest.skip("chromium is not installed")
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def axe() -> str:
    """The text of axe-core, fetched when it is not there."""
    try:
        return axe_core().read_text()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be had here: {error}")


def page_of(chromium: Any, **person: Any) -> Any:
    """A page of a context of its own, which waits as long as a test does."""
    context = chromium.new_context(**person)
    context.set_default_timeout(CEILING * 1000)
    return context.new_page()


def executable() -> str | None:
    """Chromium's, of this machine."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Raises RuntimeError where there is none."""
    from playwright.sync_api import sync_playwright

    found = executable()
    if found is None:
        raise RuntimeError("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@cache
def axe_core() -> Path:
    """Its script."""
    directory = cache_directory(os.environ) / "axe-core" / AXE
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if not (directory / "fetched").exists():
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
            command = ["npm", "install", "--prefix", str(directory), *options, f"axe-core@{AXE}"]
            subprocess.run(command, check=True, capture_output=True, timeout=CEILING)
            (directory / "fetched").touch()
    return directory / "node_modules/axe-core/axe.min.js"


def violations(page: Any, script: str, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds on a page, a line each. rules: only these."""
    page.evaluate(script)
    wanted = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": TAGS}
    found = page.evaluate("wanted => axe.run(document, {runOnly: wanted, resultTypes: ['violations']})", wanted)
    return [
        f"{each['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def watched(page: Any) -> list[str]:
    """Fills with what a page complains of: errors of scripts, of its security policy, dialogs, foreign requests."""
    found: list[str] = []
    note: Callable[[str], None] = found.append
    page.on("pageerror", lambda error: note(f"error: {error}"))
    page.on("console", lambda line: note(f"{line.type}: {line.text}") if line.type in ("error", "warning") else None)

    def dismiss(dialog: Any) -> None:
        note(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    return found
