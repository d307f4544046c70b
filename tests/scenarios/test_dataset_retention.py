"""Retention of datasets in files: the original's own samples, unchanged, and what goes wrong around them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gobblin_examples as examples
import pytest
from config_store import write_store
from engines import local_engine

from cmroot.lease import acquire
from cmroot.root import create_or_open
from replicator.cli.main import run as command
from replicator.core.runtime import Runtime
from replicator.lifecycle.retention.job_configuration import read_job
from replicator.lifecycle.retention.run import Retention

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Lake:
    """A directory that plays the cluster's root, a `$cmroot`, and the command run on them."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.root, self.cmroot = place, place / "lake", place / "cm"
        self.root.mkdir()
        create_or_open(str(self.cmroot))
        self._capsys = capsys

    def write(self, name: str, *, age: timedelta | None = None, text: str = "data") -> Path:
        """A file below a directory that is so old."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "part-0").write_text(text)
        if age is not None:
            then = time.time() - age.total_seconds()
            os.utime(path, (then, then))
        return path

    def job(self, text: str, name: str = "job.conf") -> str:
        (self.place / name).write_text(text)
        return str(self.place / name)

    def run(self, config: str, *more: str, code: int = 0) -> dict[str, Any]:
        arguments = [
            "retention",
            "run",
            config,
            "--cmroot",
            str(self.cmroot),
            "--no-metastore",
            "--root",
            str(self.root),
        ]
        found = command([*arguments, *more, "--json"])
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert found == code, json.dumps(answer, indent=1)
        return answer

    def output(self) -> str:
        return self._capsys.readouterr().out

    def dirs(self) -> set[str]:
        """Directories that hold files."""
        return {str(path.parent.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lake:
    return Lake(tmp_path, capsys)


def days(number: float) -> timedelta:
    return timedelta(days=number)


def dated(layout: str, *ages: float) -> list[str]:
    """Names of directories that are so many days old, in the zone that the samples are read in."""
    from zoneinfo import ZoneInfo

    here = datetime.now(ZoneInfo("America/Los_Angeles"))
    return [(here - days(age)).strftime(layout) for age in ages]


# ---- the samples of the guide ---------------------------------------------------------------------------------------


def test_sample_1_removes_what_is_older_than_seven_days(lake: Lake) -> None:
    for name, age in {"a/old": 7.1, "a/young": 6.9, "b/older": 30.0, "b/new": 0.0}.items():
        lake.write(f"user/gobblin/{name}", age=days(age))
    done = lake.run(lake.job(examples.TIME_BASED))
    assert (done["status"], done["datasets"], done["versions"], done["removed"]) == ("done", 2, 4, 2)
    assert lake.dirs() == {"user/gobblin/a/young", "user/gobblin/b/new"}
    assert lake.run(lake.job(examples.TIME_BASED))["removed"] == 0


def test_older_policies_are_combined_by_the_keys_of_the_original(lake: Lake) -> None:
    for number in range(5):
        lake.write(f"data/a/v{number}", age=days(number))
    prefix = "gobblin.retention."
    job = f"""
        {prefix}dataset.finder.class=GlobCleanableDatasetFinder
        {prefix}version.finder.class=GlobModTimeDatasetVersionFinder
        {prefix}dataset.pattern=/data/*
        {prefix}retention.policy.class=org.apache.gobblin.data.management.retention.policy.CombineRetentionPolicy
        {prefix}combine.retention.policy.class.one=TimeBasedRetentionPolicy
        {prefix}combine.retention.policy.class.two=NewestKRetentionPolicy
        {prefix}combine.retention.policy.delete.sets.combine.operation=INTERSECT
        {prefix}timebased.duration=P1D
        {prefix}newestK.versions.retained=3
    """
    done = lake.run(lake.job(job, "job.properties"))
    assert done["removed"] == 2, done
    assert lake.dirs() == {"data/a/v0", "data/a/v1", "data/a/v2"}


def test_sample_2_keeps_the_newest_two_of_each_dataset(lake: Lake) -> None:
    for number in range(5):
        lake.write(f"user/gobblin/a/v{number}", age=days(number))
    lake.write("user/gobblin/b/only", age=days(100))
    done = lake.run(lake.job(examples.NEWEST_K))
    assert done["removed"] == 3
    assert lake.dirs() == {"user/gobblin/a/v0", "user/gobblin/a/v1", "user/gobblin/b/only"}


def test_sample_3_removes_old_snapshots_but_leaves_two_in_any_case(lake: Lake) -> None:
    for name, ages in {"db/quiet": (4, 5), "db/busy": (1, 2, 3.5, 9), "db/one": (4,)}.items():
        for age in ages:
            lake.write(f"user/gobblin/snapshots/{name}/{age}", age=days(age))
    done = lake.run(lake.job(examples.COMBINED))
    assert done["removed"] == 2
    assert {name.partition("snapshots/")[2] for name in lake.dirs()} == {
        "db/quiet/4",
        "db/quiet/5",
        "db/busy/1",
        "db/busy/2",
        "db/one/4",
    }


def test_sample_4_judges_daily_and_hourly_versions_by_policies_of_their_own(lake: Lake) -> None:
    daily = dated("%Y/%m/%d", 7, 6, 3)
    hourly = [f"{name}/05" for name in dated("%Y/%m/%d", 4, 0)]
    unread = [f"{name}/13" for name in dated("%Y/%m/%d", 4)]
    for kind, names in {"daily": daily, "hourly": hourly + unread}.items():
        for name in names:
            lake.write(f"user/gobblin/data/event/{kind}/{name}")
    done = lake.run(lake.job(examples.SEVERAL_KINDS))
    assert {name.partition("event/")[2] for name in lake.dirs()} == {
        f"daily/{daily[2]}",
        f"hourly/{hourly[1]}",
        f"hourly/{unread[0]}",
    }
    # `hh` is the 12-hour clock: hour 13 cannot be read, and the report says so.
    assert done["ignored"] == 1 and any("HH" in each for each in done["warnings"])


def tagged(lake: Lake, files: Mapping[str, str]) -> str:
    """A store with the guide's tag, and a job that names it."""
    uri = write_store(lake.place / "store", {"data/events/main.conf": examples.EVENTS_MAIN, **files})
    return lake.job(
        f'gobblin.config.management.store.uri = "{uri}"\ngobblin.retention.tag = "/tags/retention/timebased"'
    )


def test_the_sample_of_a_tag_needs_its_bracket_and_its_spelling_then_runs_with_overrides(lake: Lake) -> None:
    whole = examples.TAG.replace("${gobblin.retention.daily}", "${gobblin.retention.daily}]")
    files = {
        "tags/retention/timebased/main.conf": examples.TAG,
        "data/events/includes.conf": examples.EVENTS_INCLUDES,
        "data/events/loginEvent/main.conf": examples.LOGIN_EVENT,
    }
    for event in ("loginEvent", "other"):
        for name in dated("%Y/%m/%d", 2000, 3, 0):
            lake.write(f"data/events/{event}/daily/{name}")
    # As printed, the list of the tag is not closed, and events include `timeBased` where the tag is `timebased`.
    done = lake.run(tagged(lake, files), code=3)
    assert done["removed"] == 0 and "no key of the store includes this tag" in done["failed"][0]["why"]
    files["data/events/includes.conf"] = examples.EVENTS_INCLUDES.replace("timeBased", "timebased")
    done = lake.run(tagged(lake, files), code=3)
    assert "tags/retention/timebased/main.conf:" in done["failed"][0]["why"]
    files["tags/retention/timebased/main.conf"] = whole
    done = lake.run(tagged(lake, files))
    assert (done["datasets"], done["removed"]) == (2, 3)
    left = dated("%Y/%m/%d", 3, 0)
    assert lake.dirs() == {f"data/events/other/daily/{name}" for name in left} | {
        f"data/events/loginEvent/daily/{left[1]}"
    }


def test_a_dataset_that_two_tags_lead_to_is_cleaned_once(lake: Lake) -> None:
    files = {f"tags/{name}/main.conf": "" for name in "ab"}
    files |= {"data/a/includes.conf": "tags/a\ntags/b", "data/a/main.conf": examples.TIME_BASED}
    uri = write_store(lake.place / "store", files)
    lake.write("user/gobblin/d/old", age=days(9))
    write_store(lake.place / "store", {"user/gobblin/d/includes.conf": "data/a"})
    more = ["--set", f"gobblin.retention.tag={uri}/tags/a,/tags/b"]
    assert lake.run(str(lake.place / "store"), *more)["datasets"] == 1


# ---- what is removed, and what is not -------------------------------------------------------------------------------

POLICY = "gobblin.retention { dataset { pattern = %s, finder.class = GlobCleanableDatasetFinder }\n%s }"
ALL = "selection.policy.class = SelectAllPolicy\n"
MODIFIED = "version.finder.class = GlobModTimeDatasetVersionFinder\n"


def policy(pattern: str, text: str) -> str:
    return POLICY % (f'"{pattern}"', text)


def everything(place: Path) -> dict[str, tuple[int, float]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime) for path in sorted(place.rglob("*"))}


def test_a_dry_run_tells_each_item_with_its_reason_and_size_and_writes_nothing(lake: Lake) -> None:
    lake.write("user/gobblin/a/old", age=days(8), text="12345")
    lake.write("user/gobblin/a/new", age=days(1))
    config = lake.job(examples.TIME_BASED)
    before = everything(lake.place)
    plan = lake.run(config, "--dry-run")
    assert everything(lake.place) == before
    (item,) = plan["items"]
    assert (plan["removed"], plan["files"], plan["bytes"]) == (0, 1, 5)
    assert (plan["status"], item["act"], item["files"], item["bytes"]) == ("planned", "remove", 1, 5)
    assert item["path"].endswith("user/gobblin/a/old") and "+ 7d = " in item["reason"]
    assert lake.run(config, "--set", "gobblin.retention.simulate=true")["status"] == "planned"
    assert everything(lake.place) == before
    arguments = ["retention", "run", config, "--cmroot", str(lake.cmroot), "--no-metastore"]
    assert command([*arguments, "--root", str(lake.root), "--dry-run"]) == 0
    assert "remove " in lake.output()


def test_a_run_over_its_limits_is_refused_as_a_whole(lake: Lake) -> None:
    for age in (3, 4, 5, 8):
        lake.write(f"user/gobblin/a/{age}", age=days(age), text="x" * 10)
    config = lake.job(examples.TIME_BASED)
    assert "1 of 4 versions" in lake.run(config, "--max-share", "0.2", code=6)["message"]
    assert "10 bytes" in lake.run(config, "--max-bytes", "9", code=6)["message"]
    assert len(lake.dirs()) == 4
    done = lake.run(config, "--max-share", "0.25", "--max-bytes", "10")
    assert (done["removed"], done["files"], done["bytes"]) == (1, 1, 10)


def test_holds_protected_places_depth_and_links_are_refused_and_told(lake: Lake) -> None:
    for name in ("held", "shielded", "free"):
        lake.write(f"d/{name}", age=days(8))
    (lake.root / "d" / "link").symlink_to(lake.root / "d" / "free")
    (lake.root / "e").symlink_to(lake.root / "d")
    hold = [
        "legal-hold",
        "add",
        "case",
        "--cmroot",
        str(lake.cmroot),
        "--reason",
        "case 17",
        "--on",
        f"{lake.root}/d/held",
    ]
    assert command(hold) == 0
    lake.output()
    config = lake.job(policy("/*", ALL + MODIFIED))
    done = lake.run(config, "--protect", f"{lake.root}/d/shielded/part-0", code=3)
    assert {Path(each["path"]).name: each["why"].split()[0] for each in done["refused"]} == {
        "held": "legal",
        "shielded": f"{lake.root}/d/shielded/part-0",
    }
    assert lake.dirs() >= {"d/held", "d/shielded"} and "d/free" not in lake.dirs()
    assert (done["ignored"], done["failed"][0]["why"].startswith("a symbolic link")) == (1, True)
    done = lake.run(config, "--min-depth", "50", code=3)
    assert all("no path above depth 50" in each["why"] or "legal" in each["why"] for each in done["refused"])


def test_neither_cmroot_nor_the_config_store_is_ever_removed(lake: Lake) -> None:
    files = {"tags/t/main.conf": "", "x/includes.conf": "tags/t", "main.conf": policy("/*", ALL + MODIFIED)}
    uri = write_store(lake.root / "conf", files)
    inside = create_or_open(str(lake.root / "w" / "cm")).place
    config = lake.job(f'gobblin.config.management.store.uri = "{uri}"\ngobblin.retention.tag = "/tags/t"')
    done = lake.run(config, "--cmroot", inside, code=3)
    assert {each["why"].rpartition("/")[2] for each in done["refused"]} == {
        "cm is protected",
        "_CONFIG_STORE is protected",
    }
    assert done["removed"] == 0


def test_empty_directories_above_go_up_to_the_dataset_unless_told_otherwise(lake: Lake) -> None:
    text = policy(
        "/data/*", ALL + 'version { finder.class = DateTimeDatasetVersionFinder, datetime.pattern = "yyyy/MM/dd" }'
    )
    for name in ("a/2020/01/01", "a/2020/02/01", "b/2020/01/01"):
        lake.write(f"data/{name}")
    lake.write("data/b/2020/other")
    lake.run(lake.job(text))
    assert [(lake.root / "data" / name).exists() for name in ("a", "a/2020", "b/2020")] == [True, False, True]
    lake.write("data/a/2020/01/01")
    lake.run(lake.job(text), "--set", "gobblin.retention.delete.empty.directories=false")
    assert (lake.root / "data/a/2020/01").exists()


@pytest.mark.parametrize(
    "finder",
    [
        "GlobModTimeDatasetVersionFinder",
        "FileLevelTimestampVersionFinder",
        "UnixTimestampVersionFinder",
        'DateTimeDatasetVersionFinder, datetime.pattern = "yyyy"',
    ],
)
def test_names_that_are_not_utf8_stay_and_are_told(lake: Lake, finder: str) -> None:
    for name in ("2020", "20\udcff"):
        lake.write(f"data/a/{name}", age=days(9))
    text = policy("/data/*", ALL + f"version {{ finder.class = {finder} }}")
    for more in ("--dry-run",), (), ():
        done = lake.run(lake.job(text), *more, code=3)
        assert [each["what"] for each in done["failed"]] == [f"{lake.root}/data/a/20\\xff"]
        assert "not UTF-8" in done["failed"][0]["why"]
    assert lake.dirs() == {"data/a/20\udcff"}


def test_a_dataset_whose_name_is_not_utf8_is_told(lake: Lake) -> None:
    for name in ("a", "\udcff"):
        lake.write(f"data/{name}/2020", age=days(9))
    lake.write("data/file\udcff")
    done = lake.run(
        lake.job(policy("/data/*/", ALL + "version { finder.class = GlobModTimeDatasetVersionFinder }")), code=3
    )
    assert [each["what"] for each in done["failed"]] == [f"{lake.root}/data/file\\xff", f"{lake.root}/data/\\xff"]
    assert lake.dirs() == {"data/\udcff/2020", "data/file\udcff"}


def test_files_that_no_plan_can_name_count_with_their_version(lake: Lake) -> None:
    (lake.write("data/a/2020", age=days(9)) / "part\udcff").write_text("more")
    done = lake.run(
        lake.job(policy("/data/*", ALL + "version { finder.class = GlobModTimeDatasetVersionFinder }")), "--dry-run"
    )
    assert (done["files"], done["bytes"]) == (2, 8)


def test_an_empty_directory_that_does_not_go_is_named(lake: Lake, immutable: Callable[[Path], None]) -> None:
    text = policy(
        "/data/*", ALL + 'version { finder.class = DateTimeDatasetVersionFinder, datetime.pattern = "yyyy/MM/dd" }'
    )
    for name in ("a/2020/01/01", "b/2020/01/01"):
        lake.write(f"data/{name}")
    immutable(lake.root / "data/a/2020")
    done = lake.run(lake.job(text), code=3)
    assert (done["status"], done["removed"], lake.dirs()) == ("incomplete", 2, set())
    (failed,) = done["failed"]
    assert failed["what"] == str(lake.root / "data/a/2020/01") and "Operation not permitted" in failed["why"]
    assert [(lake.root / "data" / name).exists() for name in ("a/2020/01", "b/2020")] == [True, False]


@pytest.mark.parametrize(
    ("finder", "names", "selection", "left"),
    [
        (
            'UnixTimestampVersionFinder, watermark.regex = "part-([0-9]+)"',
            ["part-1000", "part-2000000000000", "other"],
            "policy.class = SelectBeforeTimeBasedPolicy, timeBased.lookbackTime = 1d",
            {"part-2000000000000", "other"},
        ),
        (
            "WatermarkDatasetVersionFinder",
            ["10", "9", "8"],
            "policy.class = NewestKSelectionPolicy, newestK.versionsNotSelected = 1",
            {"9"},
        ),
        ("SingleVersionFinder", ["x"], "policy.class = SelectAllPolicy", set()),
        (
            "FileLevelTimestampVersionFinder",
            ["x", "y/z"],
            "policy.class = NewestKSelectionPolicy, newestK.versionsNotSelected = 1",
            1,
        ),
        (
            'LookbackDateTimeDatasetVersionFinder, lookback.period = 2d, path.prefix = "p", datetime.timezone = UTC\n'
            'datetime.pattern = "yyyy/MM/dd"',
            ["p/2001/01/01", f"p/{datetime.now(UTC):%Y/%m/%d}"],
            "policy.class = SelectAllPolicy",
            {"p/2001/01/01"},
        ),
        (
            "ModDateTimeDatasetVersionFinder",
            ["x"],
            "policy.class = SelectBeforeTimeBasedPolicy, timeBased.lookbackTime = 1d",
            {"x"},
        ),
    ],
)
def test_other_version_finders(lake: Lake, finder: str, names: list[str], selection: str, left: Any) -> None:
    for name in names:
        lake.write(f"data/set/{name}")
    lake.run(lake.job(policy("/data/*", f"version {{ finder.class = {finder} }}\nselection {{ {selection} }}")))
    found = {name.removeprefix("data/set/") for name in lake.dirs()}
    assert found == left or len(found) == left


def test_blacklists_older_spellings_and_the_alias(lake: Lake) -> None:
    for name in ("a", "b", "c", "d"):
        lake.write(f"data/{name}/v", age=days(9))
    lists = '\nblacklist = "/a$"'
    config = (
        policy("/data/*", "x = 1").replace("dataset {", "dataset {" + lists + "\n")
        + '\ngobblin.dataset.blacklist = "never"\ngobblin.dataset.glob.blacklist = "/data/b"\n'
        "gobblin.retention.versionAndPolicy.alias { version.finder.class = GlobModTimeDatasetVersionFinder\n"
        "selection.policy.class = SelectAllPolicy }"
    )
    assert lake.run(lake.job(config))["datasets"] == 2
    assert lake.dirs() == {"data/a/v", "data/b/v"}
    properties = (
        "gobblin.retention.dataset.pattern=/data/*\n"
        "gobblin.retention.dataset.profile.class=gobblin.data.management.retention.profile.GlobCleanableDatasetFinder\n"
        "gobblin.retention.version.finder.class=gobblin.data.management.retention.version.finder.GlobModTimeDatasetVersionFinder\n"
        "gobblin.retention.version.finder.pattern=*\n"
        "gobblin.retention.retention.policy.class=TimeBased\ngobblin.retention.minutes.retained=60\n"
    )
    done = lake.run(lake.job(properties, "job.properties"), code=0)
    assert done["removed"] == 2 and lake.dirs() == set()


def test_access_is_set_on_what_stays_and_only_there(lake: Lake) -> None:
    import grp
    import pwd

    me, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    config = policy(
        "/data/*",
        f"""
        version.finder.class = GlobModTimeDatasetVersionFinder
        selection {{ policy.class = SelectBeforeTimeBasedPolicy, timeBased.lookbackTime = 30d }}
        accessControl {{
          policies = [all, restricted]
          all {{ selection.policy.class = SelectAllPolicy, mode = 755, group = {group} }}
          restricted {{
            selection {{ policy.class = SelectBetweenTimeBasedPolicy, timeBased.minLookbackTime = 7d }}
            mode = "u=rwx,go=", user = {me}
          }}
        }}""",
    )
    young, old, gone = (lake.write(f"data/set/{age}", age=days(age)) for age in (1, 8, 31))
    before = (old / "part-0").stat().st_mode
    plan = lake.run(lake.job(config), "--dry-run")
    assert [item["access"] for item in plan["items"] if item["act"] == "set"] == [
        f"mode 755, group {group}",
        f"mode u=rwx,go=, owner {me}, group {group}",
    ]
    young.chmod(0o700)
    done = lake.run(lake.job(config))
    assert (done["removed"], done["access"]) == (1, 2) and not gone.exists()
    assert [path.stat().st_mode & 0o777 for path in (young, old)] == [0o755, 0o700]
    assert (old / "part-0").stat().st_mode == before
    assert any("user is read as owner" in each for each in done["warnings"])
    assert lake.run(lake.job(config))["access"] == 0
    wrong = lake.run(lake.job(config.replace(f"user = {me}", "owner = nobody-of-that-name")), code=3)
    assert wrong["failed"][0]["why"].startswith("user 'nobody-of-that-name' does not exist")


# ---- what goes wrong ------------------------------------------------------------------------------------------------

BEFORE = "selection { policy.class = SelectBeforeTimeBasedPolicy, timeBased.lookbackTime = %s }"
GOOD = "version.finder.class = GlobModTimeDatasetVersionFinder\nselection.policy.class = SelectAllPolicy"


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ("a = 1", "names neither a dataset finder nor a tag"),
        ("gobblin.retention.tag = /tags/x", "a tag needs a config store"),
        (
            "gobblin.retention.dataset.finder.class = org.example.Finder",
            "job.conf:1: 'org.example.Finder' is not a known dataset",
        ),
        ("gobblin.retention.dataset.finder.class = ManagedIcebergCleanableDatasetFinder", "is not supported"),
        ("a = [1", "job.conf:1: expected `]`"),
        ("gobblin.config.management.store.uri = nowhere", "no _CONFIG_STORE exists"),
    ],
)
def test_a_job_that_cannot_be_meant_is_refused(lake: Lake, config: str, reported: str) -> None:
    assert reported in lake.run(lake.job(config), code=2)["message"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "version.finder.class is missing"),
        ("version.finder.class = SomeFinder", "job.conf:2: 'SomeFinder' is not a known version finder"),
        ("version.finder.class = DatePartitionHiveVersionFinder", "finds partitions of Hive tables"),
        ("version.finder.class = DateTimeDatasetVersionFinder", "version.datetime.pattern is missing"),
        ("version { finder.class = DateTimeDatasetVersionFinder, datetime.pattern = MM }", "does not specify a day"),
        ('version { finder.class = GlobModTimeDatasetVersionFinder, globPattern = "[a" }', "is not closed"),
        (
            'version { finder.class = UnixTimestampVersionFinder, watermark.regex = "(" }',
            "is not a valid regular expression",
        ),
        (
            "version { finder.class = LookbackDateTimeDatasetVersionFinder, datetime.pattern = yyyy, "
            "lookback.period = 1M }",
            "only days and hours",
        ),
        (
            "version.finder.class = SingleVersionFinder\nselection { policy.class = SelectBeforeTimeBasedPolicy, "
            "timeBased.lookbackTime = 7d }",
            "needs versions with a time",
        ),
        (MODIFIED + BEFORE % '""', "is not a valid lookback"),
        (MODIFIED + BEFORE % "-1d", "is not a valid lookback"),
        (MODIFIED + "selection { policy.class = NewestKSelectionPolicy }", "neither of selection.newestK"),
        (MODIFIED + "accessControl.policies = [x]", "x is missing"),
        (MODIFIED + "accessControl { policies = [x], x { mode = 999 } }", "is not a valid mode"),
    ],
)
def test_a_policy_that_cannot_be_meant_fails_its_dataset_and_removes_nothing(
    lake: Lake, text: str, reported: str
) -> None:
    lake.write("data/set/v", age=days(1000))
    done = lake.run(lake.job(policy("/data/*", text)), code=3)
    assert [reported in each["why"] for each in done["failed"]] == [True], done["failed"]
    assert lake.dirs() == {"data/set/v"}


@pytest.mark.parametrize("pattern", ["/none/*", "data/*", "/data/[a"])
def test_a_pattern_that_matches_nothing_or_is_none_is_a_failure(lake: Lake, pattern: str) -> None:
    lake.write("data/set/v")
    done = lake.run(lake.job(policy(pattern, GOOD)), code=3)
    assert done["failed"][0]["why"].startswith("job.conf:1: gobblin.dataset.pattern ") and lake.dirs() == {"data/set/v"}


def test_a_directory_that_cannot_be_listed_fails_its_dataset_and_no_other(lake: Lake) -> None:
    lake.write("data/good/v", age=days(9))
    long = lake.root / "data" / "bad"
    long.mkdir()
    text = policy("/data/*", "version { finder.class = UnixTimestampVersionFinder }\n" + ALL)
    (lake.root / "data" / "file").write_text("no directory")
    done = lake.run(lake.job(text), code=3)
    assert [each["what"].rpartition("/")[2] for each in done["failed"]] == ["file"]


def test_a_version_that_changes_after_it_was_listed_stays(lake: Lake) -> None:
    path = lake.write("user/gobblin/a/old", age=days(9))
    times = itertools.count(1)

    def clock() -> float:
        """Asked before the listing, and again before anything is removed: a writer comes in between."""
        os.utime(path, (next(times), next(times)))
        return time.time()

    job = read_job(lake.job(examples.TIME_BASED))
    engine = local_engine()
    root = create_or_open(str(lake.cmroot))
    with Retention(
        root=root, metastore=None, runtime=Runtime(engine, clock=clock), job_file=job, prefix=str(lake.root)
    ) as retention:
        done = retention.run()
    assert [each["why"] for each in done.refused] == ["it has changed since it was listed"]
    assert (done.status, lake.dirs()) == ("incomplete", {"user/gobblin/a/old"})


def test_two_runs_exclude_each_other(lake: Lake) -> None:
    lake.write("user/gobblin/a/old", age=days(9))
    with acquire(str(lake.cmroot / "retention"), "retention"):
        assert lake.run(lake.job(examples.TIME_BASED), code=7)["error"] == "LeaseHeld"
    assert lake.run(lake.job(examples.TIME_BASED))["removed"] == 1


def test_without_a_metastore_it_must_be_said_that_none_knows_of_the_files(lake: Lake) -> None:
    arguments = ["retention", "run", lake.job(examples.TIME_BASED), "--cmroot", str(lake.cmroot), "--json"]
    assert command(arguments) == 2
    assert "--no-metastore" in lake.output()


def test_versions_of_a_job_that_iterates_are_counted_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gobblin refuses `version.should.iterate` with the newest K; here it has no effect."""
    for age, name in enumerate(("newest", "newer", "old", "oldest")):
        place = tmp_path / "lake" / name
        place.mkdir(parents=True)
        os.utime(place, (1_000_000_000 - age, 1_000_000_000 - age))
    lines = [
        "gobblin.retention.dataset.finder.class=GlobCleanableDatasetFinder",
        f"gobblin.retention.dataset.pattern={tmp_path}/lake",
        "gobblin.retention.version.finder.class=GlobModTimeDatasetVersionFinder",
        "gobblin.retention.selection.policy.class=org.apache.gobblin.data.management.policy.NewestKSelectionPolicy",
        "gobblin.retention.selection.newestK.versionsNotSelected=3",
        "gobblin.retention.version.should.iterate=true",
    ]
    (tmp_path / "job.properties").write_text("\n".join(lines) + "\n")
    where = ["--cmroot", str(tmp_path / "cm"), "--no-metastore", "--dry-run", "--json"]
    assert command(["retention", "run", str(tmp_path / "job.properties"), *where]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [Path(item["path"]).name for item in items] == ["oldest"]
