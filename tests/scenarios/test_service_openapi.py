"""Requests that schemathesis makes of the service's OpenAPI document: each is answered, none with 500, and queries
as they are described."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from running_service import Service
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from small_root import SmallRoot
from waiting import CEILING

from cmroot.root import create_or_open

PROCESSES = r"cmroot/(ls|find|held|expiry)$"
"""Paths whose answers take a second each."""

EXAMPLES, SLOW_EXAMPLES = 4, 1
THERE = {"policy": "west", "job": "clean", "table": "d.t"}
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


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
    who = service.token("fuzzer", "admin")
    yield service.start(), who
    assert service.stop() == 0


def test_no_request_is_an_internal_error(served: tuple[str, dict[str, str]]) -> None:
    url, who = served
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) > 40
    answered: dict[str, set[int]] = {}
    asked: Counter[str] = Counter()

    def ask(case: Any) -> None:
        _name_what_is_there(case, sum(asked.values()))
        asked[case.operation.label] += 1
        answer = case.call(headers=who, timeout=CEILING)
        answered.setdefault(case.operation.label, set()).add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    for operation in operations:
        examples = SLOW_EXAMPLES if re.search(PROCESSES, operation.path) else EXAMPLES
        for mode in list(GenerationMode):
            try:
                _settings(examples)(given(operation.as_strategy(generation_mode=mode))(ask))()
            except Unsatisfiable:  # nothing about it can be wrong
                assert mode is GenerationMode.NEGATIVE
    assert len(answered) == len(operations)
    assert {200, 202, 204, 400, 404, 422} <= set.union(*answered.values()), answered


def _name_what_is_there(case: Any, number: int) -> None:
    """In two requests of three, as names that are drawn lead nowhere."""
    if number % 3 and case.path_parameters:
        case.path_parameters |= {name: there for name, there in THERE.items() if name in case.path_parameters}
    if number % 3 and case.query and "root" in case.query:
        case.query["root"] = "policies/west/cmroot"


def _settings(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
