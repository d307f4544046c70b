"""What a notebook does with the library, in a process of its own: `python notebook.py METASTORE OTHER WAREHOUSE CMROOT
HOW`. HOW: `given` passes the caller's SparkSession, `found` has one and passes nothing, `own` has none."""

from __future__ import annotations

import os
import sys
from typing import Any

import replicator
from replicator.core.spark import hive_settings
from replicator.errors import UsageError
from replicator.metastore.thrift import connect

OF_PYSPARK = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}  # it sets them for its workers


def a_session(uri: str, warehouse: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.ui.enabled", "false").enableHiveSupport()
    for key, value in hive_settings(uri, warehouse).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in OF_PYSPARK}


def work(uri: str, other: str, cmroot: str, db: str, spark: Any) -> None:
    replicator.capture(source=uri, cmroot=cmroot, db=db, engine="spark", spark=spark)
    assert replicator.cm_check(cmroot=cmroot, engine="spark", spark=spark).status == "sound"
    assert replicator.cm_slots(cmroot=cmroot, engine="spark", spark=spark).slots == []
    with replicator.engines("spark", session=spark) as engines:
        assert replicator.verify(source=uri, target=other, db=db, engine=engines).objects
    try:
        replicator.verify(source=uri, target=other, db=db, engine="threads", spark=spark)
    except UsageError as error:
        assert "threads" in error.message
    else:
        raise AssertionError("an engine that does not exist")


def main(uri: str, other: str, warehouse: str, cmroot: str, how: str) -> None:
    db = f"notebook_{how}"
    if how == "own":
        before = environment()
        with connect(uri) as metastore:
            metastore.create_database(api_database(db, warehouse))
        work(uri, other, cmroot, db, None)
        from pyspark import SparkContext

        assert SparkContext._active_spark_context is None, "what we started is stopped"
    else:
        session = a_session(uri, warehouse)
        context, before = session.sparkContext, environment()
        for statement in (
            f"CREATE DATABASE {db}",
            f"CREATE TABLE {db}.people STORED AS PARQUET TBLPROPERTIES"
            """ ('dataset.descriptor'='{"privacy": {"column": "id"}}') AS SELECT id FROM range(10)""",
            f"CREATE TABLE {db}.gone AS SELECT id AS member FROM range(3)",
        ):
            session.sql(statement)
        session.range(5).createOrReplaceTempView("mine")
        spark = session if how == "given" else None
        work(uri, other, cmroot, db, spark)
        done = replicator.purge_run(
            uri,
            cmroot,
            f"{db}.gone:member",
            whitelist=f"{db}.people",
            field_path="privacy.column",
            dry_run=True,
            spark=spark,
        )
        assert done.status == "planned", done
        assert context._jsc is not None and session.sparkContext is context
        assert not context._jsc.getPersistentRDDs(), "nothing of ours is cached in it"
        assert session.sql("SELECT count(*) FROM mine").collect()[0][0] == 5
        assert [table.name for table in session.catalog.listTables() if table.isTemporary] == ["mine"]
    after = environment()
    assert after == before, {key: (before.get(key), after.get(key)) for key in before.keys() ^ after.keys()}
    print("well")


def api_database(name: str, warehouse: str) -> Any:
    from replicator.core.model import Database

    return Database(name=name, location=f"file:{warehouse}/{name}.db")


if __name__ == "__main__":
    main(*sys.argv[1:])
