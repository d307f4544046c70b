"""The rooms of docs/design.md and their floors: at most twelve; each exists, has the description of the page, and
imports only from its own floor and those below."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
MOST_ROOMS = 12
LIBRARIES = {
    "fastavro": {"cmroot.store"},
    "pyspark": {"replicator.core", "replicator.commands.demos", "replicator.metastore.embedded"},
    "thrift": {"replicator.metastore", "replicator.metastore.embedded"},
    "gssapi": {"cmroot.authentication", "replicator.metastore", "replicator.captures.gateways"},
    "hmsclient": {"replicator.metastore", "replicator.metastore.embedded"},
    "click": {"replicator.cli"},
    "cryptography": {"replicator.captures.dumps"},
    "sqlite3": {"replicator.captures", "replicator.core", "replicator.lifecycle.removal"},
    "sqlalchemy": {
        "replicator.core",
        "replicator.lifecycle.housekeeping",
        "replicator.lifecycle.housekeeping.migrations",
        "replicator.ingestion",
        "replicator.ingestion.migrations",
        "replicator.service",
        "replicator.service.migrations",
    },
    "prometheus_client": {"replicator.service", "replicator.service.web"},
    "alembic": {
        "replicator.core",
        "replicator.core.migrations",
        "replicator.lifecycle.housekeeping.migrations",
        "replicator.ingestion.migrations",
        "replicator.service.migrations",
    },
    "fastapi": {"replicator.service.web", "replicator.service.pages"},
    "pydantic": {"replicator.service.web"},
    "uvicorn": {"replicator.service"},
    "structlog": {"replicator.cli"},
    "starlette": {"replicator.service.web", "replicator.service.pages"},
    "jinja2": {"replicator.service.pages", "replicator.service.web"},
    "markupsafe": {"replicator.service.pages"},
}
"""Rooms that may import them."""


def rooms() -> dict[str, tuple[int, str]]:
    """The design page's rooms by module: floor and description."""
    found, floor = {}, -1
    block = (ROOT / "docs/design.md").read_text().partition("## Rooms")[2].split("```")[1]
    for line in block.strip("\n").splitlines():
        match = re.fullmatch(r"([ \d]\d|  )  (\S+) +(\S.*)", line)
        assert match, f"not a line of a room: {line}"
        floor = int(match[1]) if match[1].strip() else floor
        found[match[2].removesuffix("/").removesuffix(".py").replace("/", ".")] = floor, match[3]
    return found


ROOMS = rooms()


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> list[Path]:
    return sorted(path for name in ("cmroot", "replicator") for path in (ROOT / name).rglob("*.py"))


MODULES = {name_of(path): path for path in modules()}


def room(module: str) -> str:
    """The room that a module, or something in it, belongs to."""
    while module not in ROOMS:
        module = module.rpartition(".")[0]
    return module


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


def test_imports_point_down_the_floors() -> None:
    assert len(MODULES) > 300
    pairs = [(module, imported) for module, path in MODULES.items() for imported in imports(path)]
    ours = [pair for pair in pairs if pair[1].partition(".")[0] in ("cmroot", "replicator")]
    upwards = [f"{module} imports {imported}" for module, imported in ours if floor(imported) > floor(module)]
    assert upwards == [], "what they import is above them"


def test_no_two_rooms_import_each_other() -> None:
    arrows = {(top_room(module), top_room(each)) for module, path in MODULES.items() for each in imports(path)}
    arrows = {(one, other) for one, other in arrows if one and other and one != other}
    assert {frozenset(pair) for pair in arrows if pair[::-1] in arrows} == set()


def top_room(module: str) -> str:
    """The top room of a module; none for the public names of `replicator` itself."""
    parts = module.split(".")
    return "cmroot" if parts[0] == "cmroot" else ".".join(parts[:2]) if len(parts) > 1 else ""


def floor(module: str) -> int:
    return ROOMS[room(module)][0]


def test_a_library_is_imported_in_its_rooms_only() -> None:
    tops = {(module, each.partition(".")[0]) for module, path in MODULES.items() for each in imports(path)}
    strange = {(module, top) for module, top in tops if room(module) not in LIBRARIES.get(top, {room(module)})}
    assert strange == set(), "see LIBRARIES"
    assert {top for _, top in tops} >= set(LIBRARIES), "nobody imports it"


def test_every_room_is_on_the_page() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    beside = {name for name in MODULES if name.count(".") == 1} - packages
    assert set(ROOMS) == packages | beside


def test_the_page_says_what_the_rooms_say() -> None:
    assert {name: text for name, (_, text) in ROOMS.items()} == {name: first_sentence(name) for name in ROOMS}


def first_sentence(module: str) -> str:
    output = ast.get_docstring(ast.parse(MODULES[module].read_text())) or ""
    return re.split(r"(?<=\.)\s", " ".join(output.split()))[0]


def test_there_are_at_most_twelve_rooms() -> None:
    """Top rooms: `cmroot`, and the packages directly below `replicator`."""
    top = {"cmroot"} | {name for name, path in MODULES.items() if path.name == "__init__.py" and name.count(".") == 1}
    top -= {name for name in top if name.startswith("cmroot.")}
    assert len(top) <= MOST_ROOMS, sorted(top)
    begins = {name: ast.get_docstring(ast.parse(MODULES[name].read_text())) or "" for name in top - {"cmroot"}}
    assert {name for name, text in begins.items() if "Imports " not in text or "Begin with " not in text} == set()


def test_modules_named_in_strings_are_below_too() -> None:
    assert {(module, named) for module, path in MODULES.items() for named in strings(path) if above(module, named)} == {
        ("replicator.service.jobs", "replicator.cli.table")
    }, "the one: command lines of jobs are parsed by the command line"


def above(module: str, named: str) -> bool:
    return named.count(".") > 1 and named in MODULES and floor(named) > floor(module)


def strings(path: Path) -> set[str]:
    """Whole strings of a file."""
    found = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {value for value in found if isinstance(value, str)}


def test_a_module_name_says_where_it_is() -> None:
    """But for doors, which are called as what they lead to, and for what each of several rooms has one of."""
    below: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if path.name != "__init__.py" and not module.startswith(DOORS) and "migrations" not in module:
            below.setdefault(module.rpartition(".")[2], set()).add(module.rpartition(".")[0])
    assert {name for name, rooms in below.items() if len(rooms) > 1} == OF_SEVERAL


DOORS = ("replicator.cli", "replicator.commands")
OF_SEVERAL = {
    *("check", "plan", "run"),  # what each of these rooms has one of
    *("errors", "text"),  # of the root, which stands alone, and of those who work on it
    *("schema", "store"),  # of each database of our own
    *("objects", "roles"),  # the same things, on several floors
}
"""Names that several rooms have."""


def test_the_command_line_imports_at_the_top() -> None:
    doors = {name: path for name, path in MODULES.items() if name.startswith("replicator.cli")}
    late = [f"{name}, line {line}" for name, path in doors.items() for line in late_imports(path)]
    assert late == [] and len(doors) > 15


def late_imports(path: Path) -> list[int]:
    """Lines of imports inside functions."""
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS))
    inside = {node for function in functions for node in ast.walk(function)}
    return sorted(node.lineno for node in inside if isinstance(node, ast.Import | ast.ImportFrom))


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
"""`import_module` in `table.command` is the one late import."""
