"""Moments that a restore takes: events with several states, positions, and the commands that `show` and pages offer.

Spark writes without events here, so that event ids do not increase between captures.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import web
from command_line import Answer, command
from lab import Lab
from restore_fixture import fails, restore
from running_service import Service
from spark_sql import SparkSql
from warehouse import spark_of

from replicator.cli.main import run
from replicator.metastore.embedded.running import Running

IDS = "SELECT id FROM {}.{} ORDER BY id"


@dataclass
class Past:
    """A captured history of the table `t`. ends: the end of each capture, with the rows of `t` then; None: dropped."""

    lab: Lab
    spark: SparkSql
    ends: list[tuple[int, list[int] | None]] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def run(self, *statements: str) -> None:
        self.spark.run(*(each.format(db=self.lab.name) for each in statements))

    def capture(self, rows: list[int] | None) -> None:
        answer = self.lab.capture()
        assert answer.code == 0, answer
        self.ends.append((answer.output["position"], rows))
        self.events.append(answer.output["through_event"])

    def rows(self, db: str, table: str = "t") -> list[int]:
        self.spark.run(f"REFRESH TABLE {db}.{table}")
        return [each[0] for each in self.spark.run(IDS.format(db, table))]

    def expected(self, position: int) -> list[int]:
        """The rows of `t` at a position at which it exists."""
        number = next(number for number, (end, _) in enumerate(self.ends) if position <= end)
        rows = self.ends[number][1]
        return rows if rows is not None else self.ends[number - 1][1] or []

    def restored(self, *arguments: str) -> Answer:
        """Runs an offered command, and compares the rows that it restores with those that the source had."""
        answer = command(*arguments, "--engine", "local")
        assert answer.code == 0, (arguments, answer)
        position = answer.output["position"]
        assert self.rows(answer.output["into"]) == self.expected(position), (position, answer.output["into"])
        assert f"@{position}" in arguments, (position, arguments)
        return answer

    def unrestore(self, answer: Answer) -> None:
        """Drops what a command restored, so that another with the same name can follow."""
        self.spark.run(f"DROP DATABASE {answer.output['into']} CASCADE")


@pytest.fixture(scope="module")
def past(source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Past:
    lab = Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("moments"))
    lab.source.create()
    spark = spark_of(source_metastore.uri, source_metastore.warehouse)
    made = Past(lab, spark)
    made.run("CREATE TABLE {db}.t (id INT) USING parquet", "INSERT INTO {db}.t VALUES (1)")
    made.capture([1])
    for row in (2, 3):
        made.run(f"INSERT INTO {{db}}.t VALUES ({row})")
        made.capture([1, 2, 3][:row])
    made.run("CREATE TABLE {db}.short (id INT) USING parquet", "INSERT INTO {db}.short VALUES (7)")
    made.run("CREATE TABLE {db}.parts (id INT, p STRING) USING parquet PARTITIONED BY (p)")
    made.run("ALTER TABLE {db}.parts ADD PARTITION (p = 'x')", "DROP TABLE {db}.short")
    made.run("INSERT INTO {db}.parts PARTITION (p = 'x') VALUES (8)")
    made.run("ALTER TABLE {db}.parts DROP PARTITION (p = 'x')")
    made.capture([1, 2, 3])
    made.run("DROP TABLE {db}.t")
    made.capture(None)
    made.run("CREATE TABLE {db}.t USING parquet AS SELECT 9 AS id")
    made.capture([9])
    return made


def shown(past: Past, table: str, *more: str) -> list[dict[str, Any]]:
    answer = command("show", str(past.lab.cmroot), "--table", f"{past.lab.name}.{table}", *more)
    assert answer.code == 0, answer
    found: list[dict[str, Any]] = answer.output["records"]
    return found


def text(*arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(list(arguments))
    return out.getvalue()


def test_an_event_with_several_states_means_its_last_and_each_has_a_position(past: Past) -> None:
    event = past.events[0]
    assert past.events[:3] == [event] * 3  # Spark's inserts have no events
    (first, _), _, (last, _) = past.ends[:3]
    answer = restore(past.lab, event, "--table", "t")
    assert (answer.code, answer.output["position"]) == (0, last)
    assert (answer.output["states"], answer.output["states_from"]) == (3, first)
    assert past.rows(answer.output["into"]) == [1, 2, 3]
    for position, rows in past.ends[:3]:
        answer = restore(past.lab, f"@{position}", "--table", "t")
        assert (answer.code, answer.output["position"], answer.output["states"]) == (0, position, 1), answer
        assert answer.output["into"] == f"{past.lab.name}_restored_{event}_{position}"
        assert past.rows(answer.output["into"]) == rows
        past.unrestore(answer)
    arguments = ["--cmroot", str(past.lab.cmroot), "--db", past.lab.name, "--target", past.lab.source_uri]
    printed = text("restore", *arguments, "--to", str(event), "--table", "t", "--dry-run", "--into", "other")
    assert f"3 have this event or time, from @{first} to @{last}" in printed and "--to @POSITION" in printed


def test_every_option_that_takes_a_moment_takes_a_position(past: Past, tmp_path: Path) -> None:
    (first, _), (second, _) = past.ends[:2]
    root, name = str(past.lab.cmroot), past.lab.name
    assert [each["position"] for each in shown(past, "t", "--since", f"@{second}", "--until", f"@{second}")] == [second]
    held = command("cm", "hold", "second", "--cmroot", root, "--at", f"@{second}")
    pinned = command("cm", "slots", "create", "one", "--cmroot", root, "--at", f"@{first}")
    confirmed = command("cm", "slots", "confirm", "one", "--cmroot", root, "--at", f"@{second}")
    assert [each.output["position"] for each in (held, pinned, confirmed)] == [second, first, second]
    arguments = ["dump", "--source", past.lab.source_uri, "--cmroot", root, "--db", name, "--engine", "local"]
    dumped = command(*arguments, "--since", f"@{first}", "--until", f"@{second}", "--out", str(tmp_path / "dump"))
    assert dumped.code == 0, dumped
    assert command("show", str(tmp_path / "dump")).output["end"]["position"] == second
    file = next(str(each) for each in sorted((past.lab.source.home / "t").glob("*.parquet")))
    assert command("cm", "get", file, "--cmroot", root, "--at", f"@{first}", "--to", str(tmp_path / "x")).code == 1
    for moment in ("@", "@x", "@-1", "@1.5"):
        fails(restore(past.lab, moment), 2, "UsageError", moment)
    fails(restore(past.lab, "@0"), 2, "UsageError", "captured since")
    fails(restore(past.lab, "@999999"), 2, "UsageError", "nothing is captured after")
    for verb in (["audit", "ls", "--since"], ["housekeeping", "ls", "--deleted-before"]):
        fails(command(*verb, f"@{first}", "--cmroot", root), 2, "UsageError", "not a time")
    answer = command("cm", "hold", "late", "--cmroot", root, "--at", "@999999")
    fails(answer, 2, "UsageError", "newest captured event")


def test_objects_of_which_no_capture_read_a_file_are_named(past: Past) -> None:
    name, (before, _), (after, _) = past.lab.name, past.ends[2], past.ends[3]
    made = {each["change"]["kind"]: each["position"] for each in shown(past, "short")}
    assert before < made["create_table"] < made["drop_table"] <= after
    to = f"@{made['drop_table'] - 1}"
    planned = restore(past.lab, to, "--dry-run")
    answer = restore(past.lab, to)
    assert (planned.code, answer.code, answer.output["status"]) == (3, 3, "incomplete"), answer
    for report in (planned.output, answer.output):
        named = {(each["object"], each.get("partition", "")) for each in report["not_replicated"]}
        assert named == {(f"{name}.short", ""), (f"{name}.parts", "p=x")}
        assert all("never read" in each["reason"] for each in report["not_replicated"])
    assert past.rows(answer.output["into"], "short") == [] and past.rows(answer.output["into"]) == [1, 2, 3]
    past.unrestore(answer)
    assert restore(past.lab, to, "--table", "t", "--dry-run").code == 0  # nothing of it is unknown
    assert restore(past.lab, f"@{after}", "--dry-run").code == restore(past.lab, f"@{before}", "--dry-run").code == 0
    arguments = ["--cmroot", str(past.lab.cmroot), "--db", name, "--target", past.lab.source_uri, "--to", to]
    assert f"{name}.short: it was created and dropped between two captures" in text("restore", *arguments, "--dry-run")


def test_show_offers_a_command_for_each_state_of_a_table(past: Past) -> None:
    rows = shown(past, "t")
    offered = [each for each in rows if each.get("restore")]
    kinds = [each["change"]["kind"] for each in offered]
    assert kinds == ["set_grants", "change_files", "change_files", "drop_table", "create_table", "set_grants"]
    assert [each["change"]["kind"] for each in rows if not each.get("restore")] == ["create_database", "create_table"]
    for each in offered:
        answer = past.restored("restore", *each["restore"], "--target", past.lab.source_uri)
        drop = each["change"]["kind"] == "drop_table"
        assert answer.output["position"] >= each["position"] - drop
        past.unrestore(answer)
    printed = text("show", str(past.lab.cmroot), "--table", f"{past.lab.name}.t")
    assert printed.count("  restore: --db ") == len(offered)
    assert f"replicator restore --cmroot {past.lab.cmroot} --target METASTORE" in printed
    short = [each.get("restore") for each in shown(past, "short")]
    assert [bool(each) for each in short[-2:]] == [True, True]  # also what is then named as unread


def test_pages_offer_a_command_for_each_state(past: Past, tmp_path: Path) -> None:
    name, lab = past.lab.name, past.lab
    assert command("cm", "hold", "held", "--cmroot", str(lab.cmroot), "--at", f"@{past.ends[1][0]}").code == 0
    service = Service(tmp_path)
    west = {**lab.keys, "databases": name}
    service.configure({}, {"west": west})
    service.start()
    try:
        page = web.get(f"{service.urls[0]}/tables/{name}.t").text
        table = [html.unescape(each) for each in re.findall(r"<code>(replicator restore west [^<]*)</code>", page)]
        said = web.get(f"{service.urls[0]}/tables/{name}.t?format=json").json()["entries"]
        points = web.get(f"{service.urls[0]}/policies/west/restore-points").text
        whole = [html.unescape(each) for each in re.findall(r"<code>(replicator restore west [^<]*)</code>", points)]
    finally:
        service.stop()
    assert len(table) == sum(bool(each["restore"]) for each in said) >= 6
    assert {each["kind"] for each in said if each["restore"]} >= {"record", "hold"}
    drops = [each for each in said if each["what"] == "drop_table"]
    assert drops and all(each["restore"] for each in drops)
    for line in dict.fromkeys(table):
        past.unrestore(past.restored("--config", str(tmp_path / "replicator.toml"), *shlex.split(line)[1:]))
    ends = {f"@{position}": rows for position, rows in past.ends}
    captures = {moment: line for line in whole if (moment := shlex.split(line)[-2]) in ends}
    assert captures.keys() == ends.keys() and whole.count(captures[f"@{past.ends[1][0]}"]) >= 2  # it is held, too
    for moment, line in captures.items():
        arguments = ["--config", str(tmp_path / "replicator.toml"), *shlex.split(line)[1:]]
        assert arguments[-1] == "--dry-run"
        planned = command(*arguments, "--engine", "local")
        assert (planned.code, "t" in planned.output["tables"]) == (0, ends[moment] is not None), planned
        if ends[moment] is not None:
            past.unrestore(past.restored(*arguments[:-1]))
