"""Spark's own session on a metastore, in a process of its own: `python spark_asks.py CONFIG SETTINGS QUERY`, both
as JSON. Prints the rows."""

from __future__ import annotations

import json
import sys

import msgspec

from replicator.core.connections import MetastoreConfig
from replicator.metastore.thrift import connect
from replicator.policies.drill import spark_on

config = msgspec.json.decode(sys.argv[1], type=MetastoreConfig)
with connect(config) as metastore, spark_on(metastore, "local[1]", json.loads(sys.argv[2])) as asking:
    print(json.dumps(asking.answer(sys.argv[3], 5)))
