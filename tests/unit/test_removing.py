"""What all jobs that remove have in common: their limits, given or of `[guard]`; the shape of their reports."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

import replicator
from replicator import HousekeepingRunOptions, PurgeRetainOptions
from replicator.commands.guard import Removing
from replicator.errors import ConfigError
from replicator.lifecycle.removal.job import Removals
from replicator.lifecycle.removal.removal import Limits

GUARD = '[guard]\nmax_share = 0.2\nmax_bytes = "1TiB"\nmin_depth = 3\nprotected = ["/w/held"]\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "replicator.toml").write_text(GUARD)
    return tmp_path / "replicator.toml"


def test_the_guard_of_the_configuration_holds_for_python(config: Path) -> None:
    assert PurgeRetainOptions("prod", "/cm", config=config).limits == Limits(0.2, 2**40, 3, ("/w/held",))


def test_what_is_given_goes_before_the_guard_and_adds_to_what_it_protects(config: Path) -> None:
    given = HousekeepingRunOptions("prod", "/cm", config=config, max_share=0.0, max_bytes="10MB", protect=["/w/else"])
    assert given.limits == Limits(0.0, 10**7, 3, ("/w/held", "/w/else"))
    exact = 2**53 + 1
    assert HousekeepingRunOptions("prod", "/cm", config=config, max_bytes=exact).limits.max_bytes == exact


def test_a_size_that_is_none_is_named(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"^max_bytes: 'much'"):
        HousekeepingRunOptions("prod", "/cm", config=config, max_bytes="much").limits  # noqa: B018
    config.write_text('[guard]\nmax_bytes = "much"\n')
    with pytest.raises(ConfigError, match=r"^guard\.max_bytes: 'much'"):
        PurgeRetainOptions("prod", "/cm", config=config).limits  # noqa: B018


@pytest.mark.parametrize("name", ["housekeeping_run", "retention_run", "purge_run", "purge_retain"])
def test_jobs_that_remove_share_their_options_and_the_shape_of_their_reports(name: str) -> None:
    verb = getattr(replicator, name)
    assert issubclass(verb.options, Removing)
    report = typing.get_type_hints(verb.__wrapped__)["return"]
    assert issubclass((typing.get_args(report) or (report,))[0], Removals)
