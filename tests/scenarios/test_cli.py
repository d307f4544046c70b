"""The command line: one JSON object on success and on failure, exit codes, configuration, help, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from names import unique
from waiting import CEILING

from replicator.cli import output, table
from replicator.cli.main import cli, defaults_of, process_start, run
from replicator.cli.options import Duration, parse_settings
from replicator.core.config import Config, parse_config, read_config
from replicator.core.model import Column, Database, Partition, Serde, Storage, Table
from replicator.errors import ConfigError, UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

LOADED = time.monotonic()
AWAY = "thrift://127.0.0.1:1"


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in (table.commands() if group is cli else group.commands).items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REPLICATOR_") and name != "REPLICATOR_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    """`answer(*arguments) -> (exit code, the one JSON object on standard output)`."""

    def ask(*arguments: object) -> tuple[int, dict[str, Any]]:
        code = run([*map(str, arguments), "--json"])
        text = capsys.readouterr().out
        assert text.count("\n") == 1 and text.endswith("\n"), text
        value = json.loads(text)
        assert isinstance(value, dict)
        return code, value

    return ask


# ---- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path, _ in commands(cli)], ids=" ".join)
def test_the_help_of_every_command_has_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text and f"replicator {path[0]}" in text.partition("Example")[2]


def test_every_option_says_what_it_is_for() -> None:
    for path, command in commands(cli):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help and parameter.help.endswith((".", "]")), (path, parameter.name)


def test_help_loads_neither_spark_nor_arrow_nor_thrift() -> None:
    code = "import sys, replicator.cli.main; print([m for m in ('pyspark', 'pyarrow', 'thrift') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("replicator ")


# ---- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["dump"], 2, "UsageError"),
        (["nosuch"], 2, "UsageError"),
        (["show"], 2, "UsageError"),
        (["capture", "--source", AWAY, "--cmroot", "cm", "--engine", "magic"], 2, "UsageError"),
        (["capture", "--source", "nosuch", "--cmroot", "cm"], 2, "UsageError"),
        (["capture", "--source", AWAY, "--cmroot", "cm", "--interval", "soon"], 2, "UsageError"),
        (["load", "d", "--target", AWAY, "--rename-db", "a"], 2, "UsageError"),
        (["verify", "--source", AWAY, "--target", AWAY, "--db", "a", "--include", "("], 2, "UsageError"),
        (["--config", "nosuch.toml", "show", "d"], 2, "ConfigError"),
        (["show", "nosuch"], 1, "FormatError"),
        (["load", "nosuch", "--target", AWAY], 1, "FormatError"),
        (["verify", "--source", AWAY, "--target", AWAY, "--db", "a", "--rename-db", "a=b"], 75, "MetastoreUnreachable"),
        ([], 2, "UsageError"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_failure_is_one_json_object_with_a_hint(answer: Any, arguments: list[str], code: int, error: str) -> None:
    found, value = answer(*arguments)
    assert (found, value["exit_code"], value["status"], value["error"]) == (code, code, "failed", error)
    assert value["message"] and value["hint"]


def test_a_failure_for_people_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "nosuch"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "hint: " in err and "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["repair", "p", "--from"], ["wait", "p", "--timeout"], ["audit", "ls", "--cmroot"]]
)
def test_no_option_shows_a_secret_that_it_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "s3://KEY:hush/hush@bucket/x"])
    shown = "".join(capsys.readouterr())
    assert "hush" not in shown and "s3://***@..." in shown


def test_a_bug_is_told_without_a_traceback_unless_verbose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(**given: object) -> None:
        raise ZeroDivisionError("it broke")

    monkeypatch.setattr("replicator.cli.stored_states.run", breaks)
    assert run(["show", "x"]) == 1
    err = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: it broke" in err and "--verbose" in err and "Traceback" not in err
    assert run(["--verbose", "show", "x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_told(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def interrupted(**given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("replicator.cli.stored_states.run", interrupted)
    code, value = answer("show", "x")
    assert (code, value["error"], value["exit_code"]) == (130, "Interrupted", 130)


# ---- configuration ------------------------------------------------------------------------------------------------


def test_a_configuration_names_metastores_defaults_and_spark_settings() -> None:
    values = {
        "metastores": {"prod": {"uri": "thrift://a:9083,thrift://b:9083"}},
        "defaults": {"cmroot": "/cm", "jobs": 4},
        "spark": {"executor": {"memory": "4g"}, "spark.eventLog.enabled": True},
    }
    config = parse_config(values, "replicator.toml")
    assert config.metastore_uri("prod") == "thrift://a:9083,thrift://b:9083"
    assert config.metastore_uri("thrift://c:1") == "thrift://c:1"
    assert config.default_values() == {"cmroot": "/cm", "jobs": 4}
    assert config.spark == {"spark.executor.memory": "4g", "spark.eventLog.enabled": "true"}
    with pytest.raises(UsageError, match=r"'test' is neither .*") as raised:
        config.metastore_uri("test")
    assert "prod" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[default]\ncmroot = '/cm'", "default"),
        ("[defaults]\ncmrot = '/cm'", "cmrot` in `defaults"),
        ("[metastores.prod]\nurl = 'x'", "url` in `metastores"),
        ("[metastores.prod]\nuri = 1", "metastores[...].uri"),
        ("[defaults]\njobs = 'two'", "defaults.jobs"),
        ("[metastores.prod]", "uri"),
        ("spark = 3", "spark"),
        ("[defaults", "not TOML"),
    ],
)
def test_a_wrong_configuration_is_refused_and_the_key_named(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert names in raised.value.message and "other.toml" in raised.value.message


def test_without_a_file_nothing_is_configured() -> None:
    assert read_config(None) == Config(looked_for=f"{Path.cwd()}/replicator.toml, which does not exist")


def test_a_policy_that_is_not_there_is_looked_for_aloud(tmp_path: Path, answer: Any) -> None:
    code, value = answer("sync", "west")
    assert code == 2 and f"{tmp_path}/replicator.toml, which does not exist" in value["message"]
    assert "REPLICATOR_CONFIG" in value["hint"]
    (tmp_path / "replicator.toml").write_text("")
    assert answer("lag", "west")[1]["message"] == f"no policy 'west' in {tmp_path}/replicator.toml"
    (tmp_path / "replicator.toml").write_text('looked_for = "mine"')
    assert answer("lag", "west")[1]["error"] == "ConfigError"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "not a dump: it is empty or does not exist"),
        (["letter"], "not a dump"),
        (["FORMAT", "log"], "not a dump, but a $cmroot"),
        (["1/_finished_dump"], "not a dump, but a directory of dumps"),
        (["_dumpmetadata"], "an unfinished dump (_finished_dump is missing)"),
    ],
)
def test_a_place_that_is_no_dump_is_called_what_it_is(tmp_path: Path, answer: Any, names: list[str], says: str) -> None:
    for name in names:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).touch()
    code, value = answer("load", "d", "--target", AWAY, "--cmroot", "cm")
    assert (code, value["error"]) == (1, "FormatError") and value["message"].endswith(f"/d: {says}") and value["hint"]


def test_the_systems_errors_name_the_file_and_what_to_look_at(answer: Any) -> None:
    code, value = answer("capture", "--source", AWAY, "--cmroot", "/proc/nowhere/cm")
    assert code == 1 and value["message"] == "/proc/nowhere: No such file or directory"
    assert "mounted" in value["hint"]


def test_letters_are_understood_in_a_locale_that_has_none(tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "replicator.cli.main", "show", f"{tmp_path}/überall"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 1 and "überall" in done.stderr and "internal" not in done.stderr


def test_took_counts_from_the_programs_start(
    source_metastore: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert process_start() < LOADED, "before all imports"
    name = unique("waiting")
    with connect(source_metastore.uri) as metastore:
        metastore.create_database(Database(name=name, location=f"file:{tmp_path}/waiting"))
    arguments = ["dump", "--source", source_metastore.uri, "--cmroot", "cm", "--db", name, "--out", "d"]
    an_hour_ago = time.monotonic() - 3600
    assert run(arguments, began=an_hour_ago) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("took")]
    assert float(line.split()[1]) >= 3600


def test_flags_override_the_environment_and_that_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "replicator.toml").write_text("[defaults]\nkeeper = 'nosuch-file'\n")
    arguments = ["capture", "--source", AWAY, "--cmroot", "cm"]
    assert run(arguments) == 2
    assert "nosuch-file" in capsys.readouterr().err
    monkeypatch.setenv("REPLICATOR_CAPTURE_KEEPER", "nosuch-env")
    assert run(arguments) == 2
    assert "nosuch-env" in capsys.readouterr().err
    assert run([*arguments, "--keeper", "nosuch-flag"]) == 2
    assert "nosuch-flag" in capsys.readouterr().err


def test_the_file_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    (tmp_path / "site.toml").write_text(f"[metastores.prod]\nuri = '{AWAY}'\n[defaults]\nsource = 'prod'\n")
    monkeypatch.setenv("REPLICATOR_CONFIG", str(tmp_path / "site.toml"))
    code, value = answer("verify", "--target", "prod", "--db", "a", "--rename-db", "a=b")
    assert (code, value["error"]) == (75, "MetastoreUnreachable")


def test_the_sources_cmroot_is_not_taken_for_the_targets(tmp_path: Path) -> None:
    def defaults(name: str, **values: str) -> dict[str, Any]:
        return defaults_of(parse_config({"defaults": values}, "x"), name, table.command(name))

    assert defaults("capture", cmroot="/a", warehouse="/w") == {"cmroot": "/a"}
    assert defaults("load", cmroot="/a", warehouse="/w") == {"warehouse": "/w"}
    assert defaults("capture", target_cmroot="/b") == {}
    assert defaults("load", target_cmroot="/b") == {"target_cmroot": "/b"}


# ---- values -------------------------------------------------------------------------------------------------------


def test_durations_have_units() -> None:
    found = [Duration().convert(text, None, None) for text in ("10s", "250ms", "1.5m", "2h", "1d", "7")]
    assert found == [timedelta(seconds=each) for each in (10, 0.25, 90, 7200, 86400, 7)]


def test_settings_may_hold_equals_signs() -> None:
    assert parse_settings(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError):
        parse_settings(["a"], "--spark-conf")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 60, "3072.0 PiB")],
)
def test_sizes_are_binary(size: int, text: str) -> None:
    assert output.size_text(size) == text


def test_times_are_utc() -> None:
    assert output.time_text(0) == "1970-01-01T00:00:00Z"


def test_long_lists_are_shortened_for_people() -> None:
    lines = output.aligned([("missing", output.shortened(map(str, range(30)))), ("none", []), ("x", None)])
    assert len(lines) == 21 and lines[0] == "missing  0" and "10 more" in lines[-1]


# ---- a real metastore ---------------------------------------------------------------------------------------------


def build(running: Running, db: str) -> None:
    home = running.warehouse / f"{db}.db"

    def storage(place: Path) -> Storage:
        place.mkdir(parents=True)
        (place / "f").write_text("some rows")
        return Storage(columns=(Column(name="a", type="int"),), location=f"file:{place}", serde=Serde(name="s"))

    with connect(running.uri) as metastore:
        metastore.create_database(Database(name=db, location=f"file:{home}"))
        metastore.create_table(Table(db=db, name="t", storage=storage(home / "t")))
        keys = (Column(name="d", type="string"),)
        metastore.create_table(Table(db=db, name="p", partition_keys=keys, storage=Storage(location=f"file:{home}/p")))
        metastore.add_partitions(db, "p", [Partition(values=(d,), storage=storage(home / f"p/d={d}")) for d in "123"])


def test_a_database_goes_from_dump_to_verify(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, answer: Any
) -> None:
    build(source_metastore, "story")
    source, target = ("--source", source_metastore.uri), ("--target", target_metastore.uri)
    root = ("--cmroot", "cm")

    code, value = answer("dump", *source, *root, "--db", "Story", "--out", "d1")
    assert (code, value["status"], value["kind"], value["files"]) == (0, "dumped", "bootstrap", 4)
    assert value["observed"] > 0 and value["dump"] == str(tmp_path / "d1") and value["bytes"] == 36

    code, value = answer("load", "d1", *target, "--dry-run")
    assert (code, value["status"], value["create_databases"]) == (0, "planned", ["story"])
    code, value = answer("load", "d1", *target)
    assert (code, value["status"], value["files_copied"], value["missing"]) == (0, "loaded", 4, [])
    code, value = answer("load", "d1", *target)
    assert (code, value["status"]) == (0, "already loaded")

    code, value = answer("verify", *source, *target, "--db", "typo")
    assert (code, value["message"]) == (1, "database typo does not exist") and value["hint"]
    code, value = answer("verify", *source, "--target", source_metastore.uri, "--db", "story")
    assert (code, value["error"]) == (2, "UsageError") and "compared with itself" in value["message"]

    code, value = answer("verify", *source, *target, "--db", "story")
    assert (code, value["status"], value["objects"], value["files"]) == (0, "same", 6, 4)
    (target_metastore.warehouse / "story.db/t/f").write_text("Some rows")
    code, value = answer("verify", *source, *target, "--db", "story")
    assert (code, value["status"]) == (4, "different")
    assert [(each["object"], each["kind"]) for each in value["differences"]] == [("story.t", "file content")]
    assert answer("verify", *source, *target, "--db", "story", "--level", "size")[0] == 0

    code, value = answer("capture", *source, *root)
    assert (code, value["status"], value["records"]) == (0, "captured", 0)
    code, value = answer("dump", *source, *root, "--db", "story", "--out", "d2", "--since", "d1", "--dry-run")
    assert (code, value["kind"], value["files"], value["approximate"]) == (0, "incremental", 0, True)
    assert not (tmp_path / "d2").exists()

    code, value = answer("status", *source, *target, *root, "--db", "story")
    assert (code, value["status"], value["lag_events"], value["lag_bytes"]) == (0, "current", 0, 0)
    assert value["time"].endswith("Z")

    code, value = answer("show", "d1", "--files")
    assert (code, len(value["files"]), value["kind"]) == (0, 4, "bootstrap")
    assert value["records"][0]["change"]["kind"] == "create_database"
    segment = next((tmp_path / "cm/log").iterdir())
    assert answer("show", segment)[1]["what"] == "segment"


def test_a_missing_directory_makes_a_dump_incomplete(
    source_metastore: Running, tmp_path: Path, answer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    build(source_metastore, "holey")
    (source_metastore.warehouse / "holey.db/p/d=2/f").unlink()
    (source_metastore.warehouse / "holey.db/p/d=2").rmdir()
    arguments = ("dump", "--source", source_metastore.uri, "--cmroot", "cm", "--db", "holey")
    code, value = answer(*arguments, "--out", "d1")
    assert (code, value["status"]) == (3, "incomplete")
    assert [each.partition(" at ")[0] for each in value["missing_directories"]] == ["holey.p/d=2"]
    assert answer(*arguments, "--out", "d2", "--no-capture")[0] == 3
    assert answer(*arguments, "--out", "d3", "--include", "t")[0] == 0
    assert run([*arguments, "--out", "d4"]) == 3
    assert "holey.p/d=2" in capsys.readouterr().out


def test_people_see_a_dump_line_by_line(source_metastore: Running, capsys: pytest.CaptureFixture[str]) -> None:
    build(source_metastore, "shown")
    assert run(["dump", "--source", source_metastore.uri, "--cmroot", "cm", "--db", "shown", "--out", "d"]) == 0
    text = capsys.readouterr().out
    assert "dumped" in text and "36 B" in text
    assert run(["show", "d", "--files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("create_table" in line and "shown.t" in line for line in lines)
    assert any("add_partitions" in line and "3 partitions, d=1 to d=3" in line for line in lines)
    assert sum(line.endswith("/f") for line in lines) == 4
    assert not any(line != line.rstrip() for line in lines)


# ---- signals ------------------------------------------------------------------------------------------------------


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """In a shell's background, where the tests may run, SIGINT is ignored; not so in the command."""
    command = [sys.executable, "-m", "replicator.cli.main", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_follow_ends_with_a_signal_and_tells_the_whole(
    source_metastore: Running, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    build(source_metastore, name := unique("followed"))  # other tests' databases lie in stores that this one lacks
    arguments = ("capture", "--source", source_metastore.uri, "--cmroot", "cm", "--db", name)
    following = ("--follow", "--interval", "1h", "--json-lines")
    process = start("--heartbeat", "50ms", *arguments, *following, cwd=tmp_path)
    assert process.stdout
    for text in process.stdout:
        if json.loads(text).get("rounds") == 1:  # now it waits for the next
            break
    process.send_signal(number)
    process.send_signal(number) if number == signal.SIGTERM else None  # `timeout` sends it twice
    out, err = process.communicate(timeout=CEILING)
    assert process.returncode == code, err
    value = json.loads(out.splitlines()[-1])
    assert (value["status"], value["exit_code"]) == ("stopped", code)
    assert "Traceback" not in err


def test_sigterm_during_work_lets_the_lease_go(source_metastore: Running, tmp_path: Path) -> None:
    """A metastore that accepts and never answers keeps the command waiting where it stands."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"thrift://127.0.0.1:{silent.getsockname()[1]}"
        process = start("capture", "--source", uri, "--cmroot", "cm", "--db", "a", "--json", cwd=tmp_path)
        silent.settimeout(CEILING)
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(CEILING)
            assert connection.recv(1)  # it has asked, in its work
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=CEILING)
    assert process.returncode == 143, err
    assert json.loads(out)["error"] == "Terminated"


def test_follow_waits_for_a_metastore_that_is_away(tmp_path: Path) -> None:
    process = start("capture", "--source", AWAY, "--cmroot", "cm", "--follow", "--json", cwd=tmp_path)
    assert process.stderr
    seen = process.stderr.readline()
    assert "cannot connect" in seen and "trying again" in seen
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=CEILING)
    assert (process.returncode, json.loads(out)["status"]) == (143, "stopped")


def test_a_reader_that_goes_away_ends_the_command_quietly(source_metastore: Running, tmp_path: Path) -> None:
    build(source_metastore, "piped")
    assert run(["dump", "--source", source_metastore.uri, "--cmroot", "cm", "--db", "piped", "--out", "d"]) == 0
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "replicator.cli.main", "show", "d"],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, "")


def test_what_others_print_does_not_spoil_the_answer(tmp_path: Path) -> None:
    """Spark's Java writes to file descriptor 1."""
    code = (
        "import os, sys; from replicator.cli import main, stored_states\n"
        "stored_states.run = lambda **given: os.system('echo noise') and None"
        " or (_ for _ in ()).throw(SystemError('x'))\n"
        "sys.argv = ['replicator', 'show', 'd', '--json']; main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["error"]) == (1, "SystemError")
    assert "noise" in done.stderr


ABORTS = """
import ctypes, sys
library = ctypes.CDLL(None)
library.__cxa_atexit(library.abort, None, None)  # as a library's threads do whose process is taken apart below them
from replicator.cli.main import main
main()
"""


@pytest.mark.parametrize(("arguments", "code"), [(["show", "/nowhere", "--json"], 1), (["--version"], 0), (["x"], 2)])
def test_no_exit_code_depends_on_how_the_interpreter_ends(arguments: list[str], code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", ABORTS, *arguments], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout or ended.stderr


CLOSES = """
import atexit, sys, threading
from replicator.cli.main import main
thread = threading.Timer(0.2, lambda: print("waited for", file=sys.stderr, flush=True))
thread.start()
atexit.register(lambda: print("closed", file=sys.stderr, flush=True))
main()
"""


def test_what_was_opened_is_closed_before_the_process_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", CLOSES, "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.split("\n")[-3:-1]) == (0, ["waited for", "closed"])
