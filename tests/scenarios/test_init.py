"""`replicator init`: a configuration that the next commands can use, or none at all."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from lab import Lab
from waiting import CEILING

import replicator
from replicator.cli.main import run
from replicator.commands.cm import configured_expiry
from replicator.core.config import read_config
from replicator.errors import ConfigError, MetastoreUnreachable, Refused
from replicator.metastore.embedded.running import Running
from replicator.service.jobs import jobs_of

PROGRAM = [sys.executable, "-m", "replicator.cli.main"]


def test_the_file_is_a_policy_that_check_finds_well(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "replicator.toml"
    sides = ["--source", source_metastore.uri, "--target", target_metastore.uri]
    code = run(["init", *sides, "--databases", "default", "--file", str(file), "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, value["status"], value["policy"]) == (0, "written", "main"), value["check"]
    assert value["check"]["status"] in ("ok", "warning")
    policy = read_config(file).policy("main")
    assert (policy.source, policy.target) == (source_metastore.uri, target_metastore.uri)
    assert policy.databases == ("default",) and policy.cmroot != policy.target_cmroot
    config = read_config(file)
    jobs = jobs_of(config.service, config.policies)
    for side, root in (("source", policy.cmroot), ("target", policy.target_cmroot)):  # the service expires both roots
        assert jobs[f"main-expire-{side}"].arguments[:4] == ("cm", "expire", "--cmroot", root)
        expiry = configured_expiry(config, root)
        assert expiry and (expiry.job, expiry.period) == (f"main-expire-{side}", timedelta(days=7))
    assert "Of loaded dumps and of the history of runs" in file.read_text()

    before = file.read_bytes()
    assert run(["init", *sides, "--file", str(file), "--json"]) == 6
    assert file.read_bytes() == before
    assert run(["init", *sides, "--file", str(file), "--overwrite", "--no-check", "--json"]) == 0
    assert read_config(file).policy("main").databases == (".*",)
    assert os.listdir(tmp_path) == ["replicator.toml"]

    defaults = tmp_path / "defaults.toml"
    defaults.write_text(f'[defaults]\nsource = "{source_metastore.uri}"\ntarget = "{target_metastore.uri}"\n')
    again = ["init", "--policy", "east", "--file", str(tmp_path / "east.toml"), "--no-check", "--json"]
    assert run(["--config", str(defaults), *again]) == 0


def test_the_jobs_of_backups_make_a_chain_and_expire_it(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    lab, place = Lab(source_metastore, target_metastore, tmp_path), tmp_path / "backups"
    lab.db().table("t", {"f": "1\n"})
    file = tmp_path / "replicator.toml"
    roots = ("--cmroot", str(lab.cmroot), "--target-cmroot", str(lab.target_cmroot), "--databases", f"{lab.name}_.*")
    sides = ("--source", source_metastore.uri, "--target", target_metastore.uri)
    made = ("init", *sides, *roots, "--policy", "west", "--backups", str(place), "--file", str(file), "--no-check")
    assert command(*made).code == 0
    config = read_config(file)
    jobs = jobs_of(config.service, config.policies)
    assert jobs["west-backup"].policy == "west"
    for number, kind in enumerate(("bootstrap", "incremental")):
        lab.db().write("t", {f"f{number}": "2\n"})
        dumped = command("--config", str(file), *jobs["west-backup"].arguments, "--engine", "local")
        assert (dumped.code, dumped.output["kind"]) == (0, kind), dumped
    expired = command("--config", str(file), *jobs["west-expire-backups"].arguments)
    assert (expired.code, expired.output["removed"], len(expired.output["kept"])) == (0, [], 2), expired


def test_nothing_is_written_for_what_makes_no_policy(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    file, source, target = tmp_path / "replicator.toml", source_metastore.uri, target_metastore.uri
    with pytest.raises(ConfigError, match="a/b"):
        replicator.init(source=source, target=target, policy="a/b", file=file)
    with pytest.raises(ConfigError):
        replicator.init(source=source, target=source, file=file)
    with pytest.raises(MetastoreUnreachable):
        replicator.init(source=source, target="thrift://127.0.0.1:1", file=file)
    assert not os.listdir(tmp_path)
    file.write_text("mine")
    with pytest.raises(Refused):
        replicator.init(source=source, target=target, file=file)
    assert file.read_text() == "mine"


def test_a_terminal_is_asked_and_a_script_is_not(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    asked = subprocess.run([*PROGRAM, "init", "--json"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
    assert asked.returncode == 2 and b"--source" in asked.stdout
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "init", "--no-check", "--json"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(ours, f"{source_metastore.uri}\n{target_metastore.uri}\n".encode())
    out, err = process.communicate(timeout=CEILING)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, err
    assert json.loads(out)["file"] == "replicator.toml" and "source's metastore" in err
    assert read_config(tmp_path / "replicator.toml").policy("main").target == target_metastore.uri
    assert read_config(tmp_path / "replicator.toml").policy("main").verify is not None, "its runs compare a sample"
