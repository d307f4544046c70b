"""Purges of tables on S3 that die at requests, with 503 for a part of all requests of Spark and of the tool itself.
What is left is read by boto3, pyarrow and fastavro."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyarrow import orc
from s3_path import S3Path
from s3_proxy import counting

from replicator.metastore.thrift import connect

FORMATS = ("parquet", "orc", "textfile", "avro")
BUSY = 0.15
PATIENCE = 300  # seconds for one command

ERASED = frozenset(range(0, 100, 10))
LEFT = Counter(id for id in range(200) if id not in ERASED)
DESCRIPTOR = """TBLPROPERTIES ('dataset.descriptor'='{"privacy": {"column": "id"}}')"""

Kill = tuple[str, str, int]
"""(kind of request, part of its path, which one): where a command dies."""

RUN = [
    ("PUT", "/_purge-", 4),  # one of two files is staged
    ("PUT", "/run.json", 2),  # before the ids are known to be whole
    ("PUT", "/found/", 1),  # of Spark
    ("PUT", "/units/", 1),
    ("PUT", "/units/", 5),  # swapped, and nothing says so
    ("PUT", "/_purge-", 1),
    ("PUT", "/files/0", 1),
    ("PUT", "/audit/", 1),
    ("PUT", "/units/", 4),  # verified, and not swapped
]
RETAIN = [("DELETE", "/p.db/", 2), ("PUT", "/cm/files/", 1), ("PUT", "/units/", 1)]
CERTIFY = [("DELETE many", "", 1), ("GET", "/p.db/", 3)]


def lay(session: Any, files: int) -> None:
    """Tables of 200 rows in two partitions, and the ids to erase, in the first half of the rows of one."""
    run = session.sql
    run("CREATE DATABASE p LOCATION 's3a://lake/p.db'")
    run("CREATE DATABASE i LOCATION 's3a://lake/i.db'")
    for name in FORMATS:
        columns = f"(id BIGINT, v STRING) PARTITIONED BY (k INT) STORED AS {name}"
        run(f"CREATE TABLE p.{name} {columns} {DESCRIPTOR}")
        run(f"INSERT INTO p.{name} SELECT id, concat('member-', id), id % 2 FROM range(0, 200, 1, {files})")
    run("CREATE TABLE i.gone AS SELECT id AS member FROM range(0, 100, 10)")


@dataclass
class Kills:
    """bucket: past the proxy, which is put before `endpoint`. settings: of Spark."""

    bucket: S3Path
    endpoint: str
    metastore: str
    settings: Mapping[str, str]
    every: int = 1  # of the requests at which commands die: each, or each n-th
    versions: bool = False
    faults: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """What is otherwise than it has to be."""
        self._old = {body for key, body in self._objects() if key.startswith("p.db/") and self._erased_in(body)}
        if len(self._old) != len(FORMATS):
            self.faults.append(f"{len(self._old)} files were to be looked for")
        chance = random.Random(1)
        with counting(self.endpoint) as self._proxy:
            self._proxy.strict = False  # this server heeds digests and conditions itself
            self._proxy.fails = lambda kind, path: chance.random() < BUSY
            self._purge()
        self._look()
        return self.faults

    def _purge(self) -> None:
        asked = ["--ids", "i.gone:member", "--table-whitelist", "p", "--field-path", "privacy.column"]
        done = self._dies("purge run", RUN, asked)
        erased = sum(table["rows_erased"] for table in done.get("tables", []))
        if done.get("status") != "done" or done.get("gaps"):
            self.faults.append(f"the purge: {done}")
        print(f"{erased} rows in the last run")
        first = self._command(["purge", "certify", "--run", "latest"], 3)
        if first.get("status") != "remaining":
            self.faults.append(f"the first certificate: {first}")
        kept = self._dies("purge retain", RETAIN, ["--versions", "0", "--days", "0s", "--grace", "0s"])
        if kept.get("status") != "done" or kept.get("refused") or kept.get("adopted"):
            self.faults.append(f"retain: {kept}")
        last = self._dies("purge certify", CERTIFY, [*asked, "--expedite", "--grace", "0s"], 3 * self.versions)
        if self.versions:
            self._remove_versions(last)
            last = self._command(["purge", "certify", *asked, "--expedite", "--grace", "0s"])
        if last.get("status") != "certified":
            self.faults.append(f"the last certificate: {last}")

    # ---- commands -------------------------------------------------------------------------------------------------

    def _dies(
        self, verb: str, kills: Sequence[tuple[str, str, int]], asked: list[str], code: int = 0
    ) -> dict[str, Any]:
        """Killed at each of these requests, and run to its end then."""
        for kind, part, number in kills[:: self.every]:
            self._kill([*verb.split(), *asked], kind, part, number)
        return self._command([*verb.split(), *asked], code)

    def _started(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        there = {"AWS_ENDPOINT_URL": self._proxy.url}
        settings = {**self.settings, "spark.hadoop.fs.s3a.endpoint": self._proxy.url}
        settings["spark.hadoop.fs.s3a.retry.throttle.interval"] = "10ms"
        more = [word for key, value in settings.items() for word in ("--spark-conf", f"{key}={value}")]
        program = str(Path(sys.executable).with_name("replicator"))
        where = ["--metastore", self.metastore, "--cmroot", f"{self.bucket}cm", "--master", "local[2]", "--json"]
        command = ["env", *(f"{key}={value}" for key, value in there.items()), program, *arguments, *where, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _kill(self, arguments: Sequence[str], kind: str, part: str, number: int) -> None:
        """Only the command dies: Spark's JVM notices it, and ends a moment later."""
        left, fails = number, self._proxy.fails
        with self._started(arguments) as running:

            def kill(asked: str, path: str) -> bool:
                nonlocal left
                if fails(asked, path):
                    return True
                left -= asked == kind and part in path
                if left <= 0:
                    running.kill()
                return left <= 0

            self._proxy.fails = kill
            try:
                out, error = running.communicate(timeout=PATIENCE)
            finally:
                self._proxy.fails = fails
                running.kill()
        where = f"{' '.join(arguments[:2])}, {kind} {number} of {part}"
        print(f"{where}: {'killed' if running.returncode == -9 else running.returncode}", flush=True)
        if running.returncode != -9:
            self.faults.append(f"{where}: was not reached: {out}{error[-2000:]}")
        for key, _ in self._objects():
            if re.search(r"/lease/\d+$", key):  # free when its time is over, which here is at once
                place = self.bucket / key
                place.write_text(json.dumps(json.loads(place.read_bytes()) | {"expires": 1}))

    def _command(self, arguments: Sequence[str], code: int = 0) -> dict[str, Any]:
        self._proxy.taken()
        with self._started(arguments) as running:
            out, error = running.communicate(timeout=PATIENCE)
        asked = self._proxy.taken().total()
        print(f"{' '.join(arguments[:2])}: exit {running.returncode}, {asked} requests", flush=True)
        if running.returncode != code:
            self.faults.append(f"{' '.join(arguments)}: exit {running.returncode}: {out}{error[-2000:]}")
        found: dict[str, Any] = json.loads(out) if out.strip() else {}
        return found

    # ---- what is there --------------------------------------------------------------------------------------------

    def _objects(self) -> Iterator[tuple[str, bytes]]:
        for each in self.bucket.rglob("*"):
            yield each.key, each.read_bytes()

    def _every_version(self) -> Iterator[tuple[str, str, bytes]]:
        """(key, version, bytes)"""
        client, bucket = self.bucket.client, self.bucket.bucket
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for each in page.get("Versions", []):
                named = {"Bucket": bucket, "Key": each["Key"], "VersionId": each["VersionId"]}
                yield each["Key"], each["VersionId"], client.get_object(**named)["Body"].read()

    def _remove_versions(self, certificate: Mapping[str, Any]) -> None:
        """Those that the certificate names, as its reader does."""
        for each in certificate.get("holding", []):
            key, _, version = str(each["path"]).removeprefix(f"{self.bucket}").partition("?versionId=")
            if version:
                self.bucket.client.delete_object(Bucket=self.bucket.bucket, Key=key, VersionId=version)
            else:
                self.faults.append(f"the certificate names {each}")

    def _look(self) -> None:
        metastore, live = connect(self.metastore), set[str]()
        for name in FORMATS:
            rows: Counter[int] = Counter()
            for batch in metastore.all_partitions("p", name):
                for partition in batch:
                    live.add(prefix := str(partition.location).removeprefix(str(self.bucket)).rstrip("/") + "/")
                    for key, body in self._objects():
                        if key.startswith(prefix):
                            rows.update(ids_in(body))
            if rows != LEFT:
                self.faults.append(f"{name}: has {rows.total()} rows, {dict((rows - LEFT) + (LEFT - rows))}")
        for key, version, body in self._every_version():
            if body in self._old or (self._erased_in(body) and not key.startswith("i.db/")):
                self.faults.append(f"{key} {version}: has an erased row")
            if "/_purge-" in key and not any(key.startswith(prefix) for prefix in live) and body:
                self.faults.append(f"{key} {version}: was staged")
        client, bucket = self.bucket.client, self.bucket.bucket
        for each in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            self.faults.append(f"an upload to {each['Key']} has no end")
        for key, _ in self._objects():
            if re.search(r"\.aside-|\.replicating-|/found/|/ids/|/incoming/.", key):
                self.faults.append(f"{key}: is left")

    def _erased_in(self, body: bytes) -> set[int]:
        return ERASED & set(ids_in(body))


def ids_in(body: bytes) -> list[int]:
    """Of rows of these tables, by the first bytes of a file; of another file, none."""
    if body[:4] == b"PAR1":
        table = pq.read_table(io.BytesIO(body))
    elif body[:3] == b"ORC":
        table = orc.read_table(io.BytesIO(body))
    elif body[:4] == b"Obj\x01":
        return [
            int(each["id"]) for each in fastavro.reader(io.BytesIO(body)) if str(each.get("v")).startswith("member")
        ]
    else:
        return [int(each) for each in re.findall(rb"member-(\d+)\n", body)]
    return [int(each) for each in table["id"].to_pylist()] if {"id", "v"} <= {*table.column_names} else []
