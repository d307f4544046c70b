"""What the library answers for a session of Spark Connect, in a process of its own, whose Spark starts the server."""

from __future__ import annotations

from pyspark.sql import SparkSession

import replicator
from replicator.errors import Error


def main() -> None:
    session = SparkSession.builder.remote("local[1]").getOrCreate()
    assert session.range(3).count() == 3, "it works"
    with replicator.engines("spark", session=session) as engines:
        try:
            list(engines.for_work(1).run(len, ["a"]))
        except Error as error:
            print(error.message, error.hint)
        else:
            raise AssertionError("it ran")
    session.stop()


if __name__ == "__main__":
    main()
