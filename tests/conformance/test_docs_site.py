"""The documentation site: every page is in its navigation, every link leads somewhere, versions are the code's."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import replicator
from cmroot import root
from cmroot.log import segment
from replicator.captures import manifest
from replicator.captures.dumps import layout
from replicator.cli.main import cli
from replicator.cli.table import COMMANDS, below
from replicator.ingestion import job_store as ingestion_store
from replicator.lifecycle.housekeeping import store as housekeeping_store
from replicator.service import store as service_store

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = sorted(str(each.relative_to(DOCS)) for each in DOCS.rglob("*.md"))


class Loader(yaml.SafeLoader):
    """Python's objects, which only mkdocs makes, are left out."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for each in (entry if isinstance(entry, list) else entry.values()) for page in navigation(each)]


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.load((ROOT / "scripts/site/mkdocs.yml").read_text(), Loader)
    assert sorted(navigation(site["nav"])) == PAGES
    assert site["strict"] is True and (ROOT / "scripts/site" / site["docs_dir"]).resolve() == DOCS


@pytest.mark.parametrize("page", [*(f"docs/{each}" for each in PAGES), "README.md", "contrib/README.md"])
def test_links_lead_to_files(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = [each.partition("#")[0] for each in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)]
    assert [each for each in links if each and not (ROOT / page).parent.joinpath(each).exists()] == []


def test_the_page_of_formats_has_the_versions_of_the_code() -> None:
    rows = [line.split("|")[1:] for line in (DOCS / "upgrading.md").read_text().splitlines() if line.startswith("| ")]
    told = {row[0].strip().partition(":")[0].strip("`"): row[2].strip() for row in rows if len(row) > 4}
    assert root.VERSION == segment.VERSION
    assert {name: told[name] for name in told if name != "what"} == {
        "dump": str(layout.VERSION),
        "$cmroot": str(root.VERSION),
        "memory of a policy": "1",
        "mark of a load": "1",
        "manifest": str(manifest.VERSION),
        "store of housekeeping": housekeeping_store.REVISION,
        "store of the service": service_store.REVISION,
        "store of ingestion": ingestion_store.REVISION,
    }


def test_the_pages_name_commands_that_there_are() -> None:
    text = "".join((DOCS / f"{name}.md").read_text() for name in ("index", "tutorial", "upgrading", "support"))
    assert set(re.findall(r"(?:^|`|\$ )replicator ([a-z-]+)", text, re.MULTILINE)) <= set(COMMANDS)


@pytest.mark.parametrize("page", [*(f"docs/{each}" for each in PAGES), "README.md", "contrib/README.md"])
def test_a_page_that_installs_says_how_from_a_checkout(page: str) -> None:
    text = (ROOT / page).read_text()
    extras = set(re.findall(r"pip install '?replicator(?:\[(\w+)\])?", text))
    if page.startswith("docs/decisions/") or not extras:
        return
    assert "checkout" in text
    assert [each for each in extras if not re.search(rf"'\.\[{each}" if each else r"pip install \.", text)] == []


@pytest.mark.parametrize("page", [*(f"docs/{each}" for each in PAGES), "README.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`((?:tests|scripts|docs|contrib|replicator)/[\w/.*-]+)", (ROOT / page).read_text())
    assert [each for each in named if not list(ROOT.glob(each.rstrip("/.")))] == []


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in below(group).items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_what_the_readme_says_of_every_command_is_true() -> None:
    assert "Every command has `--json` (except `serve` and `completion`), an example in `--help`" in README
    commands = dict(leaves(cli))
    without = {name for name, each in commands.items() if not any("--json" in one.opts for one in each.params)}
    assert without == {"serve", "completion"} and len(commands) > 80
    assert [name for name, each in commands.items() if "Example" not in (each.help or "")] == []
    functions = {name.replace("_", " ").replace("-", " ") for name in dir(replicator)}
    assert [name for name in commands if name.replace("-", " ") not in functions | {"completion"}] == []


def test_the_readme_links_pictures_that_there_are() -> None:
    pictures = re.findall(r"!\[.+\]\((docs/images/[\w-]+\.(?:png|svg))\)", README)
    assert len(pictures) >= 2 and all((ROOT / each).is_file() for each in pictures)


def test_the_site_builds_with_every_link_followed(tmp_path: Path) -> None:
    """And fails for one that leads nowhere."""
    done = subprocess.run([ROOT / "scripts/docs", tmp_path / "site"], capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip("mkdocs cannot be installed")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(each.relative_to(tmp_path / "site")) for each in (tmp_path / "site").rglob("*.html")}
    assert {each.removesuffix(".md") + ".html" for each in PAGES} <= pages
    assert (tmp_path / "site/search/search_index.js").exists(), "what is searched where there is no server"
    text = (tmp_path / "site/index.html").read_text()
    assert 'src="assets/iframe-worker.js"' in text and (tmp_path / "site/assets/iframe-worker.js").exists()
    assert not re.search(r"(?:src|href)=\"https?://(?!github\.com|squidfunk)", text), "a page that fetches something"
    assert 'data-md-component="source"' not in text, "of which the theme asks GitHub for figures"
    copy = tmp_path / "copy"
    shutil.copytree(DOCS, copy / "docs")
    shutil.copytree(ROOT / "scripts" / "site", copy / "scripts" / "site")
    shutil.copy(ROOT / "scripts" / "docs", copy / "scripts" / "docs")
    with (copy / "docs" / "support.md").open("a") as page:
        page.write("\n[nowhere](cli.md#replicator-nothing)\n")
    done = subprocess.run([copy / "scripts" / "docs"], capture_output=True, text=True, check=False)
    assert done.returncode and "replicator-nothing" in done.stdout + done.stderr
