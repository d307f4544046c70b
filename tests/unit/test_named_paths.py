"""Files and modules that pages, docstrings and comments name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
TOPS = {"cmroot", "contrib", "docs", "replicator", "scripts", "tests"}
FOUND = (path.relative_to(ROOT) for top in sorted(TOPS) for path in (ROOT / top).rglob("*") if path.is_file())
FILES = [path for path in FOUND if "__pycache__" not in path.parts]
PATHS = {path for file in FILES for path in (file, file.with_suffix(""), *file.parents)}
KNOWN = {"/".join(path.parts[start:]) for path in PATHS for start in range(len(path.parts))}
"""Files, modules without `.py`, and directories; by their whole path, and by each end of it."""

PRODUCT = [path for path in FILES if path.suffix == ".py" and path.parts[0] in ("cmroot", "replicator")]
NAMES = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in PRODUCT}
MODULES = {name: (ROOT / path).read_text() for path, name in NAMES.items()}
PACKAGES = {name for path, name in NAMES.items() if path.name == "__init__.py"}
ROOMS = {name.partition(".")[2] for name in PACKAGES if name.count(".") == 1}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
ELSEWHERE = {
    "docs/service.md": r"(cmroot|ingestion|policies)/.*",  # addresses of the API, and names of roots
    "docs/tutorial.md": r"sql\.py",  # which the reader writes
}
"""By page, what looks like a path of this repository, and is none."""


def paths(page: str) -> list[str]:
    """Paths in backticks that begin with a directory of this repository or a room, and names of Python files."""
    prose = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    named = {code.rstrip("/") for code in re.findall(r"`([a-z0-9_./*-]+)(?: [^`\n]*)?`", prose)}
    ours = {each for each in named if each.endswith(".py") or ("/" in each and each.split("/")[0] in TOPS | ROOMS)}
    return sorted(each for each in ours if not re.fullmatch(ELSEWHERE.get(page, ""), each))


def test_paths_on_pages_exist() -> None:
    named = [(page, path) for page in TEXTS for path in paths(page)]
    assert [each for each in named if each[1] not in KNOWN and not any(ROOT.glob(each[1]))] == [] and len(named) > 100


def test_paths_in_the_description_of_a_package_exist() -> None:
    described = {name: ast.get_docstring(ast.parse(MODULES[name])) or "" for name in PACKAGES}
    named = [(name, path) for name in PACKAGES for path in re.findall(r"`([\w/]+(?:/|\.py))`", described[name])]
    assert [each for each in named if f"{each[0].replace('.', '/')}/{each[1].rstrip('/')}" not in KNOWN] == []


def test_dotted_names_of_modules_exist() -> None:
    dotted = re.compile(r"(?<![\w.\"/])(?:cmroot|replicator)(?:\.\w+)+")
    named = [(where, name) for where, text in (MODULES | TEXTS).items() for name in dotted.findall(text)]
    ours = [each for each in named if ".".join(each[1].split(".")[:2]) in PACKAGES or each[1].startswith("cmroot.")]
    assert [each for each in ours if not is_there(each[1])] == [] and len(ours) > 2000


def is_there(dotted: str) -> bool:
    """A module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    return dotted in MODULES or (module in MODULES and re.search(rf"\b{name}\b", MODULES[module]) is not None)
