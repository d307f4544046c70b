"""Failures of Spark jobs: errors of ours come back as they were, those of Spark are told in a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from replicator.errors import Error


class Careful:
    """A function whose errors of ours are returned: trying again on another executor would not help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, task: Any) -> Any:
        try:
            return self._function(task)
        except Error as error:
            return error


def hint_of(error: Exception, otherwise: str) -> str:
    """What helps against an error of Spark's. Its own client of a metastore is that of Hive 2.3, and Hive 4 has no
    `get_table` any more."""
    said = f"{error} {getattr(error, 'java_exception', '')}"
    if "S3AFileSystem not found" in said or "No FileSystem for scheme" in said:
        return (
            "Spark itself reads and writes there, by Hadoop's client of that store: give it one, for S3 by "
            "--spark-conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, that of Spark's Hadoop"
        )
    if "Invalid method name: 'get_table'" not in said:
        return otherwise
    return (
        "Spark's own client cannot read tables of a metastore of Hive 4: give it another one by --spark-conf "
        "spark.sql.hive.metastore.version=4.0.1, .jars=path and .jars.path=JARS (docs/compatibility.md)"
    )


def cause_of(error: Exception) -> str:
    """The last error of the Python traceback inside a Java one, else the beginning."""
    text = str(getattr(error, "java_exception", error))
    found = [line for line in text.splitlines() if _RAISED.match(line)]
    return (found[-1] if found else text[:300])[:500]


_RAISED = re.compile(r"(?!org\.|java\.|Traceback|Caused by)[A-Za-z_][\w.]*: ")
"""A traceback's last line: it alone is not indented. Java's own errors are of packages."""
