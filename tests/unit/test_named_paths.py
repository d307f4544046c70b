"""Files and modules that pages, docstrings and comments name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
TOPS = {"cmroot", "contrib", "docs", "replicator", "scripts", "tests"}
FILES = [path.relative_to(ROOT) for top in TOPS for path in (ROOT / top).rglob("*") if path.is_file()]
PATHS = {path for file in FILES if "__pycache__" not in file.parts for path in (file, file.with_suffix(""), *file.parents)}
KNOWN = {"/".join(path.parts[start:]) for path in PATHS for start in range(len(path.parts))}
"""Files, modules without `.py`, and directories; by their whole path, and by each end of it."""

PRODUCT = [path for path in FILES if path.suffix == ".py" and path.parts[0] in ("cmroot", "replicator")]
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): (ROOT / path).read_text() for path in PRODUCT}
PACKAGES = {".".join(path.parent.parts) for path in PRODUCT if path.name == "__init__.py"}
ROOMS = {package.partition(".")[2] for package in PACKAGES if package.count(".") == 1}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
ELSEWHERE = {
    "docs/service.md": r"(cmroot|ingestion|lifecycle|policies)/.*",  # addresses of the API, and names of roots
    "docs/tutorial.md": r"shop\.py",  # which the reader writes
}
"""By page, what looks like a path of this repository, and is none."""


def paths(page: Path) -> list[str]:
    """Paths in backticks that begin with a directory of this repository or a room, and names of Python files. Capital
    letters stand for a name."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = {code.rstrip("/") for code in re.findall(r"`([a-z0-9_./*-]+)(?: [^`\n]*)?`", prose)}
    ours = {each for each in named if each.endswith(".py") or ("/" in each and each.split("/")[0] in TOPS | ROOMS)}
    return sorted(each for each in ours if not re.fullmatch(ELSEWHERE.get(str(page.relative_to(ROOT)), ""), each))


def test_paths_on_pages_exist() -> None:
    named = [(str(page.relative_to(ROOT)), path) for page in PAGES for path in paths(page)]
    assert [each for each in named if each[1] not in KNOWN and not any(ROOT.glob(each[1]))] == []
    assert len(named) > 100


def test_paths_in_the_description_of_a_package_exist() -> None:
    described = {package: ast.get_docstring(ast.parse(MODULES[package])) or "" for package in PACKAGES}
    named = [(package, path) for package, text in described.items() for path in re.findall(r"`([\w/]+(?:/|\.py))`", text)]
    assert [each for each in named if f"{each[0].replace('.', '/')}/{each[1].rstrip('/')}" not in KNOWN] == []
    assert len(named) > 20


def test_dotted_names_of_modules_exist() -> None:
    """In the code, too. Properties of databases begin with `replicator.`, but with no package."""
    texts = MODULES | {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    named = [(text, name) for text in texts for name in re.findall(r"(?<![\w.\"/])(?:cmroot|replicator)(?:\.\w+)+", texts[text])]
    ours = [each for each in named if ".".join(each[1].split(".")[:2]) in PACKAGES or each[1].startswith("cmroot.")]
    assert [each for each in ours if not is_there(each[1])] == []
    assert len(ours) > 2000


def is_there(dotted: str) -> bool:
    """A module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    return dotted in MODULES or (module in MODULES and re.search(rf"\b{name}\b", MODULES[module]) is not None)
