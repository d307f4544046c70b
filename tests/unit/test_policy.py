"""Policies: the file's keys as a value, errors that name policy and key, partition filters, overlaps."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmroot.pins import Slot, create_slot
from replicator.core.config import Config, parse_config, read_config
from replicator.core.model import DEFAULT_PARTITION
from replicator.core.policy import (
    KEYS,
    Policy,
    VerifyBudget,
    matching_databases,
    overlaps,
    refuse_overlaps,
    same_metastore,
)
from replicator.core.text import (
    bound_text,
    duration_text,
    parse_duration,
    parse_partition_filter,
    parse_size,
    size_text,
)
from replicator.errors import ConfigError, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
LEAST: dict[str, Any] = {
    "source": "thrift://a:9083",
    "target": "there",
    "databases": "sales",
    "cmroot": "/cm",
    "target_cmroot": "/tcm",
    "dumps": "/dumps",
}


def parse(name: str = "west", **values: Any) -> Policy:
    written = {key: value for key, value in (LEAST | values).items() if value is not None}
    metastores = {"there": {"uri": "thrift://b:9083"}}
    return parse_config({"metastores": metastores, "policies": {name: written}}, "some.toml").policy(name)


# ---- reading ------------------------------------------------------------------------------------------------------


def test_the_least_that_a_policy_needs_has_defaults_for_the_rest() -> None:
    policy = parse()
    assert (policy.name, policy.slot, policy.source, policy.target) == (
        "west",
        "west",
        "thrift://a:9083",
        "thrift://b:9083",
    )
    assert (policy.databases, policy.include, policy.exclude) == (("sales",), (), ())
    assert (policy.schedule, policy.retention, policy.max_lag) == (timedelta(minutes=5), timedelta(days=7), None)
    assert (policy.external, policy.external_base, policy.keeper, policy.publish) == ("mirror", None, "auto", "mirror")
    assert (policy.verify, policy.warehouse, policy.engine) == (None, None, "auto")


def test_the_example_of_the_manual_is_read_and_names_every_key() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    values = tomllib.loads(text)
    policy = parse_config(values, "docs").policy("west")
    assert set(values["policies"]["west"]) == set(KEYS) - {"include"}
    assert policy.source == "thrift://meta-1:9083,thrift://meta-2:9083"
    assert policy.verify == VerifyBudget(objects=20, bytes=10 * 1024**3)
    assert policy.external_base == "s3a://west/external"  # as written: who reads the target's locations knows s3a
    assert policy.target_name("SALES") == "sales_west" and policy.target_name("mart_a") == "mart_a"
    wanted = policy.partitions["sales.orders"]
    assert wanted is not None and wanted.keys == ("day", "region")
    assert list(policy.partitions) == ["sales.orders"]


def test_the_manual_has_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert set(KEYS) <= set(rows)


def test_a_policy_is_asked_for_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config({"policies": {"west": LEAST | {"target": "thrift://b"}}}, "x").policy("east")
    assert "east" in caught.value.message and "west" in caught.value.hint
    with pytest.raises(UsageError, match="no policy "):
        Config().policy("east")
    path = tmp_path / "replicator.toml"
    path.write_text('[policies.west]\nsource = "thrift://a"\n')
    with pytest.raises(ConfigError, match=re.escape(f"{path}: policies.west: `target` is missing")):
        read_config(path)


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"source": None}, "policies.west: `source` is missing"),
        ({"source": "nosuch"}, "policies.west.source: 'nosuch' is neither"),
        ({"target": "thrift://A:9083/"}, "policies.west.target: is the source"),
        ({"target": "thrift://c,thrift://a"}, "policies.west.target: is the source"),
        ({"databases": "("}, "policies.west.databases: not a regular expression"),
        ({"databases": []}, "policies.west.databases: is empty"),
        ({"databases": [1]}, "policies.west: Expected `str`, got `int`"),
        ({"include": "*"}, "policies.west.include: not a regular expression"),
        ({"exclude": ["a", "["]}, "policies.west.exclude: not a regular expression"),
        ({"schedul": "5m"}, "policies.west: unknown key `schedul`"),
        ({"schedule": "soon"}, "policies.west.schedule: 'soon' is not a duration"),
        ({"schedule": 0}, "policies.west.schedule: is zero"),
        ({"retention": "1 week"}, "policies.west.retention: "),
        ({"max_lag": "-5m"}, "policies.west.max_lag: "),
        ({"cmroot": "cm"}, "policies.west.cmroot: not an absolute path or URL: 'cm'"),
        ({"cmroot": ""}, "policies.west.cmroot: not an absolute path"),
        ({"dumps": "/cm/dumps"}, "policies.west.dumps: is inside of cmroot"),
        ({"dumps": "/none/../cm/dumps"}, "policies.west.dumps: is inside of cmroot"),
        ({"cmroot": "s3a://b/../c"}, "policies.west.cmroot: 's3a://b/../c': contains NUL or `..`"),
        ({"target_cmroot": "/cm"}, "is inside of"),
        ({"cmroot": "/dumps/cm/"}, "policies.west.cmroot: is inside of dumps"),
        ({"warehouse": "../w"}, "policies.west.warehouse: not an absolute path"),
        ({"external": "copy"}, "policies.west.external: not an absolute path"),
        ({"keeper": "hope"}, "policies.west: Invalid enum value 'hope' in `keeper`"),
        ({"publish": "later"}, "policies.west: Invalid enum value 'later' in `publish`"),
        ({"engine": "mapreduce"}, "policies.west: Invalid enum value 'mapreduce' in `engine`"),
        ({"verify": {}}, "policies.west.verify: has no budget"),
        ({"verify": {"objects": 0}}, "policies.west.verify: a budget must be positive"),
        ({"verify": {"bytes": "much"}}, "policies.west.verify.bytes: 'much' is not a size"),
        ({"verify": {"sample": 3}}, "policies.west: unknown key `sample` in `verify`"),
        ({"rename_db": {"nosuch": "a"}}, "policies.west.rename_db.nosuch: is not one of its databases"),
        ({"databases": ["a", "b"], "rename_db": {"a": "x", "b": "X"}}, "rename_db.b: 'X' is empty or already used"),
        ({"partitions": {"orders": "p = 1"}}, "policies.west.partitions.'orders': is not a table name"),
        ({"partitions": {"other.t": "p = 1"}}, "policies.west.partitions.'other.t': is not in one of its databases"),
        ({"partitions": {"sales.t": "p like 'a'"}}, "partitions.'sales.t': \"p like 'a'\" cannot be read"),
        ({"map_location": {"a": "/b"}}, "policies.west.map_location.'a': not an absolute path"),
        ({"s3_events": {"gs://b": "https://q"}}, "policies.west.s3_events: gs://b=https://q is not a bucket"),
        ({"s3_events": {"s3://b": "https://q", "s3a://b": "https://r"}}, "s3_events: one bucket with two queues"),
        ({"s3_events": {"s3://b": "https://q", "s3://c": "https://q"}}, "s3_events: two buckets with one queue"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_error_names_file_policy_and_key(values: dict[str, Any], output: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**values)
    assert caught.value.message.startswith("some.toml: policies.west") and output in caught.value.message
    assert caught.value.hint and caught.value.exit_code == 2


def test_a_queue_is_one_roots() -> None:
    events, there = {"s3_events": {"s3://b": "https://q"}}, {"there": {"uri": "thrift://b:9083"}}
    policies = {"west": LEAST | events, "east": LEAST | events}
    parse_config({"metastores": there, "policies": policies}, "x")
    policies["east"] |= {"cmroot": "/other"}
    with pytest.raises(ConfigError, match="the root of policy west also reads the queue"):
        parse_config({"metastores": there, "policies": policies}, "x")


@pytest.mark.parametrize("name", ["a b", "", ".hidden", "a/b", "x" * 64])
def test_a_name_that_no_slot_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a valid policy name"):
        parse(name)


@pytest.mark.parametrize("name", ["west", "West-2.to_3", "1", "x" * 63])
def test_a_name_that_is_allowed_is_a_slots(name: str, tmp_path: Path) -> None:
    create_slot(str(tmp_path), Slot(parse(name).slot, 1, 1, created="", confirmed=""))


def test_policies_must_be_a_table_of_tables() -> None:
    for wrong in (3, {"west": 3}, []):
        with pytest.raises(ConfigError):
            parse_config({"policies": wrong}, "x")


# ---- databases ----------------------------------------------------------------------------------------------------


def test_patterns_match_whole_names_regardless_of_case() -> None:
    policy = parse(databases=["sales", "Mart_.*"])
    assert matching_databases(policy, ["mart", "mart_a", "sales", "sales2", "SALES"]) == ["mart_a", "sales", "SALES"]


def test_policies_overlap_where_they_write_one_database_of_one_target() -> None:
    one = parse("one", databases="sales")
    other = parse("other", source="thrift://c:9083", databases=".*", rename_db={"shop": "sales"})
    existing = {"thrift://a:9083": ["sales", "x"], "thrift://c:9083": ["shop", "y"]}
    (found,) = overlaps([one, other], existing)
    assert (found.db, found.policies, found.sources) == ("sales", ("one", "other"), ("sales", "shop"))
    with pytest.raises(ConfigError, match=r"policies one \(from sales\) and other \(from shop\) both write"):
        refuse_overlaps([one, other], existing)


@pytest.mark.parametrize("side", ["catalog", "target_catalog"])
def test_a_policy_that_spells_out_the_default_catalog_overlaps_one_that_does_not(side: str) -> None:
    one, other = parse("one", databases="sales"), parse("other", databases="sales", **{side: "hive"})
    for existing in ({one.source_key: ["sales"]}, {other.source_key: ["sales"]}):
        (found,) = overlaps([one, other], existing)
        assert found.policies == ("one", "other")
    elsewhere = parse("elsewhere", databases="sales", target_catalog="lake")
    assert overlaps([one, elsewhere], {one.source_key: ["sales"]}) == []


def test_policies_that_only_could_overlap_do_not() -> None:
    one, other = parse("one", databases="sales"), parse("other", databases=".*")
    assert overlaps([one, other], {"thrift://a:9083": ["mart"]}) == []
    elsewhere = parse("elsewhere", target="thrift://z:9083")
    renamed = parse("renamed", rename_db={"sales": "sales2"})
    refuse_overlaps([one, elsewhere, renamed], {"thrift://a:9083": ["sales"]})
    assert overlaps([one, other], {}) == []  # no source was asked


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("thrift://a:9083", "thrift://A:9083/", True),
        ("thrift://a", "a:9083", True),
        ("thrift://a:1,thrift://b:2", "thrift://b:2", True),
        ("thrift://a:1", "thrift://a:2", False),
        ("thrift://[::1]:9083", "thrift://[::1]", True),
    ],
)
def test_metastores_are_the_same_by_an_address_in_common(one: str, other: str, same: bool) -> None:
    assert same_metastore(one, other) == same_metastore(other, one) == same


# ---- partition filters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "matches"),
    [
        ("day >= '2026-01-01'", ["2026-01-01"], True),
        ("day >= '2026-01-01'", ["2025-12-31"], False),
        ("Day > '2026-01-01' AND day<'2026-02-01'", ["2026-01-15"], True),
        ("Day > '2026-01-01' AND day<'2026-02-01'", ["2026-02-01"], False),
        ("day != 'a'", ["b"], True),
        ("day != 'a'", ["a"], False),
        ("day = 'it''s'", ["it's"], True),
        ('day = "a and b"', ["a and b"], True),
        ("day = ''", ["x"], False),
        ("day < 12", ["9"], True),
        ("day < '12'", ["9"], False),
        ("day = 9", ["09"], True),
        ("day <= -1.5", ["-2"], True),
        ("day < 12", ["x"], False),
        ("day != 12", ["x"], False),
        ("day != 12", ["NaN"], False),
        ("day != 'a'", [DEFAULT_PARTITION], False),
        ("day != 'a'", [""], False),
    ],
)
def test_a_filter_matches_as_sql_would(text: str, values: Sequence[str], matches: bool) -> None:
    assert parse_partition_filter(text).matches(["day"], values) is matches


def test_every_condition_of_a_filter_must_hold() -> None:
    wanted = parse_partition_filter("a = 1 and b > 'm'")
    found = [values for values in (("1", "n"), ("1", "a"), ("2", "n")) if wanted.matches(("A", "b"), values)]
    assert found == [("1", "n")]
    assert wanted.unknown_keys(["A", "c"]) == ["b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "day",
        "day =",
        "day = x",
        "day = 1x",
        "day = '1",
        "day == 1",
        "day = 1 and",
        "day = 1 day = 2",
        "day = 1 andday = 2",
        "= 1",
        "day between 1 and 2",
        "day in (1)",
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read at"):
        parse_partition_filter(text)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(TEXTS, TEXTS.filter(bool), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
def test_any_text_can_be_asked_for_in_quotes(literal: str, value: str, op: str) -> None:
    quoted = "'" + literal.replace("'", "''") + "'"
    found = parse_partition_filter(f"k {op} {quoted}").matches(["k"], [value])
    wanted = {
        "=": value == literal,
        "!=": value != literal,
        "<": value < literal,
        "<=": value <= literal,
        ">": value > literal,
        ">=": value >= literal,
    }
    assert found == (wanted[op] and value != DEFAULT_PARTITION)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers())
def test_numbers_are_compared_as_numbers(literal: Decimal, value: int) -> None:
    assert parse_partition_filter(f"k > {literal:f}").matches(["k"], [str(value)]) == (value > literal)


# ---- quantities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("5m", 300), ("1.5h", 5400), ("7d", 604800), (" 30 ", 30)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5 weeks", "-1s", "1e9d", "m", "99999999999999d", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("10 B", 10), ("1kB", 1000), ("500MB", 500_000_000), ("1.5gib", 1536 * 1024**2)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "1 XB", "-1", "1 GB 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_quantities_are_written_for_people() -> None:
    assert [duration_text(s) for s in (0, 119, 120, 7200, 200_000)] == ["0 s", "119 s", "2 min", "2.0 h", "2.3 d"]
    assert [size_text(s) for s in (0, 1023, 1024, 3 * 2**30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 GiB"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (12.0, "12 s"), (60.2, "61 s"), (149.0, "3 min"), (7201.0, "2.1 h"), (2460.0, "41 min")],
)
def test_an_upper_bound_is_never_rounded_down(seconds: float, text: str) -> None:
    assert bound_text(seconds) == text
