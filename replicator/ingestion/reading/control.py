"""The control connection of a source: one connection of its JDBC driver in Spark's Java process. By it the catalog is
read, a snapshot held, figures asked for. Answers are texts; what a value is, its SQL says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from replicator.errors import ConfigError
from replicator.ingestion.reading.source_errors import said, source_error

Row = tuple[str | None, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Seconds. login: for a connection; lock: for a lock that others hold; answer: for the first rows of a query, also
    of a database that went silent."""

    login: int = 30
    lock: int = 60
    answer: int = 3600


class Control:
    """Not for several threads at once. Raises errors of ours (see `source_errors`)."""

    def __init__(self, connection: Any, name: str, secret: str, patience: Patience) -> None:
        self._connection, self._name, self._secret, self._patience = connection, name, secret, patience

    def run(self, statement: str) -> None:
        with self._ours(), self._statement() as asked:
            asked.execute(statement)

    def rows(self, query: str, *parameters: str) -> list[Row]:
        """Of a query with `?` for each parameter; without any, `?` is just a letter."""
        with self._ours():
            if not parameters:
                with self._statement() as asked:
                    return _texts(asked.executeQuery(query))
            prepared = self._connection.prepareStatement(query)
            try:
                prepared.setQueryTimeout(self._patience.answer)
                for number, parameter in enumerate(parameters, 1):
                    prepared.setString(number, parameter)
                return _texts(prepared.executeQuery())
            finally:
                prepared.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Which changes nothing, and is undone at its end."""
        with self._ours():
            self._connection.setAutoCommit(False)
        try:
            yield
        finally:
            try:
                self._connection.rollback()
                self._connection.setAutoCommit(True)
            except Exception as error:  # its server is gone, and with it the transaction
                log.info("source %s: a transaction ended by itself: %s", self._name, said(error))

    def close(self) -> None:
        """Also where the server is gone."""
        try:
            self._connection.close()
        except Exception as error:
            log.info("source %s: the connection ended by itself: %s", self._name, said(error))

    @contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise source_error(error, self._name, self._secret) from None

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        asked = self._connection.createStatement()
        try:
            asked.setQueryTimeout(self._patience.answer)
            yield asked
        finally:
            asked.close()


def connect(
    session: Any, driver: str, url: str, properties: Mapping[str, str], name: str, patience: Patience
) -> Control:
    """session: the SparkSession whose jars have the class `driver`. Raises ConfigError where they have not."""
    jvm, secret = session.sparkContext._jvm, properties.get("password", "")
    given = jvm.java.util.Properties()
    for key, value in properties.items():
        given.setProperty(key, value)
    try:
        loader = session._jsparkSession.sharedState().jarClassLoader()
        made = loader.loadClass(driver).newInstance()
    except Exception as error:
        raise ConfigError(
            f"source {name}: Spark has no class {driver}", hint="give Spark the driver: `spark.jars` of [spark]"
        ) from error
    try:
        connection = made.connect(url, given)
    except Exception as error:
        raise source_error(error, name, secret) from None
    if connection is None:
        raise ConfigError(f"source {name}: its driver does not know its URL", hint="check url and jar")
    return Control(connection, name, secret, patience)


def _texts(answer: Any) -> list[Row]:
    count = answer.getMetaData().getColumnCount()
    found = []
    while answer.next():
        found.append(tuple(answer.getString(number) for number in range(1, count + 1)))
    return found
