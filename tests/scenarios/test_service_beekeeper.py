"""Beekeeper's REST API of the service, about what a real run of housekeeping has scheduled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from housekeeping import LifecycleFixture
from in_process import InProcess
from names import unique

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

EXPIRES = {"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "P3D"}
UNREFERENCED = {"beekeeper.remove.unreferenced.data": "true"}
ITEM = {"path", "databaseName", "tableName", "partitionName", "housekeepingStatus", "creationTimestamp"}
ITEM |= {"modifiedTimestamp", "cleanupTimestamp", "cleanupDelay", "cleanupAttempts", "lifecycleType"}
PAGE = {"content", "pageable", "sort", "totalElements", "totalPages", "last", "first", "number", "size"}
PAGE |= {"numberOfElements", "empty"}


def test_a_client_of_beekeeper_works_on(source_metastore: Running, tmp_path: Path) -> None:
    with connect(source_metastore.uri) as metastore:
        life = LifecycleFixture(metastore, unique("bees"), tmp_path)
        life.partitioned("days", ["a", "b", "c"], **EXPIRES)
        life.table("moves", properties=UNREFERENCED)
        life.run()
        life.write("elsewhere")
        life.relocate("moves", life.place("elsewhere"))
        life.run()
    policy = {"source": source_metastore.uri, "target": "thrift://127.0.0.1:9", "databases": ["none"]}
    policy |= {"target_cmroot": str(tmp_path / "t"), "dumps": str(tmp_path / "dumps"), "cmroot": life.root.place}
    served = InProcess(tmp_path, {"policies": {"west": {**policy, "schedule": "30d"}}})  # the only root

    def get(endpoint: str, **parameters: Any) -> Any:
        answer = served.get(f"/api/v1/database/{life.db.name.upper()}/table/{endpoint}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = get("Days/metadata")
    assert set(found) == PAGE and all(set(each) == ITEM for each in found["content"])
    partitions = sorted(each["partitionName"] or "" for each in found["content"])
    assert partitions == ["", "p=a", "p=b", "p=c"] and found["totalElements"] == 4 and found["last"]
    first = next(each for each in found["content"] if each["partitionName"] == "p=a")
    assert (first["cleanupDelay"], first["lifecycleType"]) == ("P3D", "EXPIRED")
    assert first["housekeepingStatus"] == life.items(partition="p=a")[0].status
    assert len(first["cleanupTimestamp"]) == len("2026-03-01T12:00:00")
    some = get("days/metadata", size=3, page=1, sort="partitionName,desc")
    assert [each["partitionName"] or "" for each in some["content"]] == [""]
    assert (some["totalPages"], some["number"], some["pageable"]["offset"]) == (2, 1, 3)
    assert some["sort"]["sorted"] and not some["first"]
    assert [each["partitionName"] for each in get("days/metadata", partition_name="P=B")["content"]] == ["p=b"]
    late = first["cleanupTimestamp"]
    assert get("days/metadata", deleted_after=late)["totalElements"] < 4
    assert get("days/metadata", deleted_before="2000-01-01T00:00:00")["empty"]
    assert get("days/metadata", housekeeping_status="deleted")["empty"]
    assert get("days/metadata", lifecycle_type="unreferenced")["empty"]
    assert get("none/metadata")["content"] == []
    (path,) = get("moves/unreferenced-paths", partition_name="ignored")["content"]
    assert set(path) == ITEM - {"partitionName"} and path["path"].endswith("/moves")
    assert get("moves/unreferenced-paths", path=path["path"])["totalElements"] == 1


def test_errors_look_like_beekeepers(source_metastore: Running, tmp_path: Path) -> None:
    with connect(source_metastore.uri) as metastore:
        life = LifecycleFixture(metastore, "wrong", tmp_path)
        life.run()
    served = InProcess(tmp_path, {"defaults": {"cmroot": life.root.place}})
    for wrong in ("sort=nonsense", "housekeeping_status=NOSUCH", "deleted_before=soon"):
        answer = served.get(f"/api/v1/database/d/table/t/metadata?{wrong}")
        assert answer.status_code == 400, answer.text
        assert set(answer.json()) == {"timestamp", "status", "error", "message", "path"}
        assert answer.json()["error"] == "Bad Request" and wrong.partition("=")[2].upper() in answer.text.upper()
