"""Commands that need no server work without the libraries of the extra `server`."""

from __future__ import annotations

import subprocess
import sys

from replicator.cli import table

SERVING = {"serve", "token", "metrics"}
IMPORTS = """
import importlib, sys
for library in {libraries}:
    sys.modules[library] = None
for module in {modules}:
    importlib.import_module(module)
"""


def test_only_the_service_needs_its_libraries() -> None:
    modules = {f"replicator.cli.{module}" for name, (module, _) in table.COMMANDS.items() if name not in SERVING}
    libraries = {*table.OF_SERVER, "starlette", "pydantic"}
    code = IMPORTS.format(libraries=sorted(libraries), modules=sorted(modules))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
