"""The config store: HOCON, includes, tags and versions, and which file gave which value."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from config_store import write_store
from hypothesis import given
from hypothesis import strategies as st

from replicator.cli.main import run as command
from replicator.errors import ConfigError
from replicator.lifecycle.retention.config_store import ConfigStore, text_of
from replicator.lifecycle.retention.hocon_parser import parse
from replicator.lifecycle.retention.hocon_values import Fields, Items, Scalar, Value, merge_fields, resolve
from replicator.lifecycle.retention.job_configuration import read_job


def plain(value: Value) -> Any:
    match value:
        case Scalar(text=text):
            return text
        case Items(items=items):
            return [plain(each) for each in items]  # type: ignore[arg-type]
        case Fields(fields=fields):
            return {key: plain(each) for key, each in fields.items()}  # type: ignore[arg-type]


def read(*texts: str, **outside: str) -> Any:
    """Texts merged, strongest first."""
    merged = Fields({}, parse("", "nothing").origin)
    for number, text in reversed(list(enumerate(texts))):
        merged = merge_fields(parse(text, f"file{number}"), merged)
    return plain(resolve(merged, outside))


# ---- HOCON ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("#only a comment", {}),
        ("{a = 1}", {"a": "1"}),
        ("a=7d\nb = 1y2M # c\nc=0755 // d", {"a": "7d", "b": "1y2M", "c": "0755"}),
        ("d=-7d\ne=1e+5", {"d": "-7d", "e": "1e+5"}),
        ("a : 3\r\nb:4\r\n", {"a": "3", "b": "4"}),
        ("a = foo bar  baz ", {"a": "foo bar  baz"}),
        ("a.b { c = 1, d : 2 }", {"a": {"b": {"c": "1", "d": "2"}}}),
        ('"a:b".c=1\na.b:2', {"a:b": {"c": "1"}, "a": {"b": "2"}}),
        ('a = "x\\u0041\\n"\nb="""y\nz"""', {"a": "xA\n", "b": "y\nz"}),
        ("a=[1]\na += 2\na+=3", {"a": ["1", "2", "3"]}),
        ("a+=2", {"a": ["2"]}),
        ("a=[{x=1}]\na += {y=2}", {"a": [{"x": "1"}, {"y": "2"}]}),
        ("a=[1\n2,\n3,]", {"a": ["1", "2", "3"]}),
        ("a=[1] [2]", {"a": ["1", "2"]}),
        ("a{b=1}\na{c=2}\na=3\na{d=1}", {"a": {"d": "1"}}),
        ("x.y=1\nz=${x}{w=2}\nx.y=3", {"x": {"y": "3"}, "z": {"y": "3", "w": "2"}}),
        ('path=a\npath=${path}":b"', {"path": "a:b"}),
        ("a=1\na=${a}${a}\nb=${a}", {"a": "11", "b": "11"}),
        ("a={b=1}\na=${a}{c=2}", {"a": {"b": "1", "c": "2"}}),
        ("x={l=[1]}\nz=${x}{l+=3}", {"x": {"l": ["1"]}, "z": {"l": ["1", "3"]}}),
        ("a=${?none}\nb=[${?none}, 1]", {"b": ["1"]}),
        ("a=${known}", {"a": "here"}),
    ],
)
def test_hocon_is_read_as_the_typesafe_library_does(text: str, found: Any) -> None:
    assert read(text, known="here") == found


def test_merging_replaces_lists_and_text_whole_and_resolves_at_the_end() -> None:
    assert read("a=5", "b=${a}\na=1") == {"a": "5", "b": "5"}
    assert read("l = [3]", "l=[1,2]") == {"l": ["3"]}
    assert read("l += 3\nl += 4", "l += 2", "l=[1]") == {"l": ["1", "2", "3", "4"]}
    assert read("a={x=1}", "a=${t}", "t={y=2}") == {"t": {"y": "2"}, "a": {"y": "2", "x": "1"}}
    assert read("a={x=1}", "a=3", "a={y=2}") == {"a": {"x": "1"}}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("p=/user/*", "f:1: unexpected '*'"),
        ("a=1\nb = [${a}\n c=1", "f:3: unexpected '='"),
        ("a=1\nb {", "f:2: expected `}`"),
        ("a=1}\nb=2", "f:1: unexpected '}'"),
        ("a", "f:1: expected `=`"),
        ("=1", "f:1: expected a key"),
        ("x=1\na=", "f:2: expected a value"),
        ('\n\na = "x', "f:3: a quoted text is not closed"),
        ("a=1 b=2", "f:1: unexpected '='"),
        ("a=1,,b=2", "f:1: two commas"),
        ("[1]", "f:1: found a list, but"),
        ('a="\\q"', "is not a valid escape"),
        ("a=[1]x", "text, lists and objects"),
        ('include "x"', "f:1: a file cannot be included"),
        ("a=1\nb=${none}", "f:2: ${none} refers to nothing"),
        ("a=${b}\nb=${a}", "refers to itself"),
        ("a=${b}\nb={c=${a.c}}", "references form a cycle"),
        ("a=" + "[" * 500, "braces and brackets are nested more than 100 deep"),
        ("a0=1\n" + "\n".join(f"a{n}=[${{a{n - 1}}},${{a{n - 1}}}]" for n in range(1, 40)), "expand without end"),
    ],
)
def test_wrong_hocon_is_refused_with_file_and_line(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(parse(text, "f"))
    assert reported in error.value.message


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), _json, max_size=5))
def test_json_is_hocon(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert plain(resolve(parse(text, "f"))) == as_text(value)


def as_text(value: Any) -> Any:
    match value:
        case dict():
            return {key: as_text(each) for key, each in value.items()}
        case list():
            return [as_text(each) for each in value]
        case None | bool():
            return json.dumps(value)
        case _:
            return str(value)


@given(st.text(alphabet='ab.=:{}[],"$?+\\#/ \n\t-1\u00e9', max_size=40))
def test_whatever_stands_in_a_file_it_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        resolve(parse(text, "f"))


def test_a_value_knows_where_it_was_written_and_through_which_reference_it_came() -> None:
    found = resolve(merge_fields(parse("\na = ${b}", "strong"), parse("b = 1\n\nc = 2", "weak")))
    a, c = found.fields["a"], found.fields["c"]
    assert isinstance(a, Scalar) and isinstance(c, Scalar)
    assert (str(a.origin), str(a.assigned)) == ("weak:1", "strong:2")
    assert (str(c.origin), c.assigned) == ("weak:3", None)


# ---- the store ------------------------------------------------------------------------------------------------------


def opened(place: Path, files: dict[str, str], **variables: str) -> ConfigStore:
    return ConfigStore.open(write_store(place, files), variables=variables)


def test_the_walk_takes_own_values_then_includes_from_the_last_line_then_the_directory_above(tmp_path: Path) -> None:
    keys = ["/data/db/t", "/tags/b", "/tags/x", "/tags", "/", "/tags/a", "/data/db", "/data"]
    files = {f"{key}/main.conf".lstrip("/"): f'k="{key}"\nof{number}=1' for number, key in enumerate(keys)}
    files |= {
        "data/db/t/includes.conf": "# tags\n\ntags/a\n // of all, see https://tags/a\n/${tags}/b/ // the strongest\n",
        "tags/b/includes.conf": "tags/x",
        "includes.conf": "never/read",
    }
    store = opened(tmp_path, files, tags="tags")
    found = store.resolve(store.key("//data/db/t/"))
    assert [text_of(node.key) for node in found.nodes] == keys
    assert found.settings.text("k") == "/data/db/t"
    assert all(found.settings.text(f"of{number}") for number in range(len(keys)))
    assert list(store.importers(("tags", "b"))) == [("data", "db", "t")]
    assert store.resolve(store.key("/data/db/other")).settings.text("k") == "/data/db"


def test_a_store_is_found_above_its_uri_and_its_version_is_the_one_that_was_current_when_it_was_opened(
    tmp_path: Path,
) -> None:
    uri = write_store(tmp_path, {"prod/data/main.conf": "v=1", "main.conf": "w=0"})
    store = ConfigStore.open(f"{uri}/prod")
    assert store.key("/data/x") == ("prod", "data", "x")
    write_store(tmp_path, {"prod/data/main.conf": "v=2"}, version="3.0")
    assert store.resolve(store.key("/data/x")).settings.text("v") == "1"
    newer = ConfigStore.open(uri)
    assert newer.resolve(newer.key("/prod/data")).settings.text("v") == "2"
    back = ConfigStore.open(uri, version="2.0")
    assert back.resolve(back.key("/prod/data")).settings.text("w") == "0"
    with pytest.raises(ConfigError, match=r"the store has no version '4'$") as error:
        ConfigStore.open(uri, version="4")
    assert "2.0, 3.0" in error.value.hint


def test_a_file_of_the_store_may_include_another_beside_it(tmp_path: Path) -> None:
    files = {
        "a/main.conf": 'x=1\nin { include "common" }',
        "a/common.conf": "y=${z}\nz=2",
        "b/main.conf": 'include "no"',
    }
    store = opened(tmp_path, files)
    found = store.resolve(("a",)).settings
    assert plain(found.fields) == {"x": "1", "in": {"y": "2", "z": "2"}}
    assert str(found.origin("in.z")) == "a/common.conf:2"
    with pytest.raises(ConfigError, match=r"b/main.conf:1: include 'no'"):
        store.resolve(("b",))


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        (
            {"d/includes.conf": "tags/a", "tags/a/includes.conf": "tags/b", "tags/b/includes.conf": "/tags/a"},
            r"tags/b/includes.conf:1: keys include each other: /tags/a -> /tags/b -> /tags/a",
        ),
        ({"d/includes.conf": "d/e", "d/e/main.conf": ""}, "keys include each other: /d -> /d/e -> /d"),
        (
            {"d/includes.conf": "\ntags/timeBased", "tags/timebased/main.conf": ""},
            r"d/includes.conf:2: includes /tags/timeBased, which is not in the store",
        ),
        ({"d/includes.conf": "tags/a, tags/b"}, r"d/includes.conf:1: unexpected ','"),
        ({"d/includes.conf": "tags//b"}, r"d/includes.conf:1: text after // is a comment"),
        ({"d/includes.conf": "# all\n//tags//b"}, r"d/includes.conf:2: text after // is a comment"),
        ({"d/includes.conf": "../x"}, "contains `..`"),
        ({"d/includes.conf": "tags/${none}"}, "refers to nothing"),
        ({"d/includes.conf": "[tags]"}, "is not a key of the store"),
        ({"d/main.conf": "x=1\ny=["}, r"d/main.conf:2: expected"),
        ({"d/main.conf": "x=1\ny=\x00"}, "nothing"),
        ({"d/main.conf": 'include "d.conf"', "d/d.conf": 'include "d.conf"'}, "files include each other"),
    ],
)
def test_a_wrong_store_is_refused_with_file_and_line(tmp_path: Path, files: dict[str, str], reported: str) -> None:
    store = opened(tmp_path, files)
    if reported == "nothing":
        return
    with pytest.raises(ConfigError, match=reported):
        store.resolve(("d",))


def test_a_place_without_a_store_or_a_store_without_a_current_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no _CONFIG_STORE exists"):
        ConfigStore.open(str(tmp_path))
    write_store(tmp_path, {})
    metadata = tmp_path / "_CONFIG_STORE" / "store-metadata.conf"
    metadata.write_text("other = 1")
    with pytest.raises(ConfigError, match=r"has no config\.hdfs\.store"):
        ConfigStore.open(str(tmp_path))
    metadata.unlink()
    with pytest.raises(ConfigError, match="no version of the store is the current one"):
        ConfigStore.open(str(tmp_path))


# ---- the job file ---------------------------------------------------------------------------------------------------


def test_a_job_file_is_java_properties_or_hocon_and_names_its_store(tmp_path: Path) -> None:
    uri = write_store(tmp_path / "store", {"d/main.conf": "x = ${home}"})
    (tmp_path / "job.pull").write_text(
        "# a job\n! too\ngobblin.config.management.store.uri = " + uri + "\n"
        "gobblin.config.runtime.home=/h\nlong = a,\\\n    b\ncolon: 1\n\\u0061\\=b c\nlast=\n"
    )
    job = read_job(str(tmp_path / "job.pull"), given={"colon": "2"})
    assert job.store and job.store.resolve(("d",)).settings.text("x") == "/h"
    assert [job.settings.text(key) for key in ("long", "colon", "a=b", "last")] == ["a,b", "2", "c", ""]
    assert str(job.settings.origin("colon")) == "--set" and str(job.settings.origin("long")) == "job.pull:5"
    (tmp_path / "job.conf").write_text("a { b = 1 }")
    assert read_job(str(tmp_path / "job.conf")).settings.text("a.b") == "1"
    assert read_job(str(tmp_path / "store")).store is not None
    with pytest.raises(ConfigError, match="the file does not exist"):
        read_job(str(tmp_path / "none.conf"))


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_says_which_file_and_line_gave_each_value_and_whom_it_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "data/events/includes.conf": "tags/time",
        "data/events/main.conf": 'pattern = "/data/events/*"\nlookback = 3d\nretries = 2',
        "data/events/login/main.conf": "\nlookback = 1d",
        "tags/time/main.conf": "lookback = 1000d\nold = ${lookback}\nparts = [${part}]\npart { age=${old}, name=x }",
        "main.conf": "retries = 5\nzone = UTC",
        "data/main.conf": "zone = PST",
    }
    write_store(tmp_path, files)
    arguments = ["retention", "explain", "/data/events/login", "--config", str(tmp_path), "--json"]
    assert command(arguments) == 0
    reported = json.loads(capsys.readouterr().out)
    values = {each["key"]: each for each in reported["values"]}
    assert reported["version"] == "2.0" and reported["nodes"][0] == "/data/events/login"
    assert values["lookback"]["at"] == "data/events/login/main.conf:2"
    assert values["lookback"]["hides"] == ["data/events/main.conf:2", "tags/time/main.conf:1"]
    assert (values["old"]["value"], values["old"]["through"]) == ("1d", "tags/time/main.conf:2")
    assert (values["parts[0].name"]["at"], values["parts[0].name"]["through"]) == (
        "tags/time/main.conf:4",
        "tags/time/main.conf:3",
    )
    assert values["parts[0].age"]["value"] == "1d" and values["parts[0].age"]["hides"] == []
    # The root is met through the tag, before the directories above the dataset.
    assert (values["zone"]["value"], values["zone"]["far"], values["retries"]["value"]) == ("UTC", True, "2")
    assert any("zone" in warning for warning in reported["warnings"])
    for path in (
        "data/events/login",
        "_CONFIG_STORE/2.0/data/events/login",
        "_CONFIG_STORE/2.0/data/events/login/main.conf",
    ):
        assert command(["retention", "explain", str(tmp_path / path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["values"] == reported["values"]
    below = tmp_path / "_CONFIG_STORE"
    assert command(["retention", "explain", "/data/none", "--config", str(below.parent)]) == 0
    assert "version 2.0" in capsys.readouterr().out
    assert command(["retention", "explain", "/data/x", "--config", str(tmp_path / "nothing.conf")]) == 2


@pytest.mark.parametrize("reference", ["${SECRET_TOKEN}", "${?SECRET_TOKEN}"])
def test_only_names_that_are_allowed_are_read_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    job, config = tmp_path / "job.conf", tmp_path / "replicator.toml"
    job.write_text(f"gobblin.retention.said = {reference}\n")
    config.write_text("")
    arguments = ["--config", str(config), "retention", "explain", "/data/x", "--config", str(job), "--json"]
    assert command(arguments) == 2
    output = capsys.readouterr().out
    assert "hunter2" not in output and "SECRET_TOKEN" in output and "job.conf" in output
    config.write_text('[retention]\nenvironment = ["SECRET_TOKEN"]\n')
    assert command(arguments) == 0
    assert "hunter2" in capsys.readouterr().out
