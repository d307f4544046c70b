"""Requests that schemathesis makes of the service's OpenAPI document: each is answered, none with 500, and questions
as they are described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from small_root import SmallRoot
from test_service import Service

from cmroot.root import create_or_open

PROCESSES = r"cmroot/(ls|find|held|expiry)$"
"""Paths whose answers take a second each."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A service without metastores: its policy's do not answer."""
    here = tmp_path_factory.mktemp("openapi")
    small = SmallRoot(create_or_open(f"{here}/cm").place)
    small.keep("a", "b")
    small.capture(add="a b")
    small.capture(release="a@1")
    policy = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "databases": "d", "schedule": "1d"}
    roots = {"cmroot": f"{here}/cm", "target_cmroot": f"{here}/target", "dumps": f"{here}/dumps"}
    (here / "job.properties").write_text("gobblin.retention.dataset.pattern=/data/*\n")
    retention = ["retention", "run", f"{here}/job.properties", "--no-metastore", "--cmroot", f"{here}/cm", "--dry-run"]
    service = Service(here)
    service.configure(
        {"clean": {"command": retention, "cron": "0 0 1 1 *"}},
        {"west": {**policy, **roots, "warehouse": f"{here}/target"}},
        more={"defaults": {"cmroot": f"{here}/cm"}},
    )
    who = service.token("fuzzer", "--role", "admin")
    yield service.start(), who
    assert service.stop() == 0


@pytest.fixture
def described(served: tuple[str, dict[str, str]]) -> Any:
    return schemathesis.openapi.from_url(f"{served[0]}/openapi.json")


schema = schemathesis.pytest.from_fixture("described")


def _settings(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@schema.exclude(path_regex=PROCESSES).parametrize()
@_settings(6)
def test_no_request_is_an_internal_error(case: Any, served: tuple[str, dict[str, str]]) -> None:
    _ask(case, served[1])


@schema.include(path_regex=PROCESSES).parametrize()
@_settings(2)
def test_no_request_that_takes_long_is_an_internal_error(case: Any, served: tuple[str, dict[str, str]]) -> None:
    _ask(case, served[1])


def _ask(case: Any, who: dict[str, str]) -> None:
    answer = case.call(headers=who, timeout=60)
    case.validate_response(answer, checks=[not_a_server_error, content_type_conformance, response_schema_conformance])
