"""Commands work without the libraries of extras; only the service needs those of `server`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from replicator.cli import table

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SERVING = {"serve", "token", "metrics"}
IMPORTS = """
import importlib, sys
for library in {libraries}:
    sys.modules[library] = None
for module in {modules}:
    importlib.import_module(module)
"""


def libraries(extra: str) -> set[str]:
    """Modules of an extra; with what those of `server` bring along."""
    named = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in EXTRAS[extra]} - {"replicator"}
    return named | ({"starlette", "pydantic"} if extra == "server" else set())


@pytest.mark.parametrize("server", [True, False])
def test_commands_are_imported_without_extras(server: bool) -> None:
    absent = {each for extra in EXTRAS if not (server and extra == "server") for each in libraries(extra)}
    modules = {
        f"replicator.cli.{module}" for name, (module, _) in table.COMMANDS.items() if server or name not in SERVING
    }
    assert {"adlfs", "pyspark", "hdfs_native"} < absent and libraries("server") >= table.OF_SERVER
    code = IMPORTS.format(libraries=sorted(absent), modules=sorted(modules))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
