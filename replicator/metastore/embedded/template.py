"""An empty metastore database, created once per machine and copied for each new metastore.

The server creates its tables when it first requires them, one class at a time, which is slow, and two of them
incorrectly in Derby (reference: hive-schema-2.3.0.derby.sql). So one start creates every table, then come the repairs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from replicator.errors import MetastoreStartError
from replicator.metastore.embedded.distributions import (
    CONNECTION_URL,
    POSTGRES,
    PYSPARK,
    Hive,
    distribution,
    pyspark_jars,
)
from replicator.metastore.embedded.server_process import (
    INSTANCE,
    Runtime,
    began,
    end,
    environment,
    free_port,
    last_lines,
    open_modules,
    spawn,
    wait,
    write_conf,
)
from replicator.metastore.java import cache_directory, locked

UPGRADES = Path(__file__).with_name("distributions")
FORMAT = 2  # version of the template; increase it with any change below

# MESSAGE is created as LONG VARCHAR, 32,700 characters: an event of a dozen partitions does not fit. Without the index
# two concurrent writers get the same event id, and Derby sometimes fails to read a long backlog. The default database's
# row names the warehouse: the server creates it again for the directory it runs on.
_REPAIRS = """connect 'jdbc:derby:{database}';
alter table APP.NOTIFICATION_LOG drop column MESSAGE;
alter table APP.NOTIFICATION_LOG add column MESSAGE clob;
create unique index APP.NOTIFICATION_LOG_EVENT_ID on APP.NOTIFICATION_LOG (EVENT_ID);
delete from APP.NOTIFICATION_LOG;
delete from APP.NOTIFICATION_SEQUENCE;
delete from APP.DATABASE_PARAMS;
delete from APP.DBS;
{lock_tables}disconnect;
connect 'jdbc:derby:{database};shutdown=true';
"""


def new_database(runtime: Runtime, database: Path) -> None:
    """Creates an empty metastore database at `database` atomically."""
    aside = database.with_name(f".{database.name}.new")
    shutil.rmtree(aside, ignore_errors=True)  # of a killed start; the caller holds the directory's lock
    shutil.copytree(template(runtime), aside, ignore=shutil.ignore_patterns("*.lck"))
    os.replace(aside, database)


def template(runtime: Runtime) -> Path:
    """Returns the directory of this machine's template, which is created if it does not exist yet."""
    derby = next(jar for path in runtime.jars for jar in path.parent.glob(path.name) if jar.name.startswith("derby-"))
    kept = cache_directory(runtime.env) / "templates" / f"hive-{runtime.hive.version}-{derby.stem}-{FORMAT}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with locked(kept.parent):
            if not kept.is_dir():
                _make(runtime, kept)
    return kept


def _make(runtime: Runtime, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".new.") as aside:
        directory, port, instance = Path(aside), free_port(), uuid.uuid4().hex
        settings = {INSTANCE: instance}
        if runtime.hive.name == PYSPARK:
            settings |= _made_by_the_server(directory)
        else:
            make_schema(runtime, directory, {CONNECTION_URL: _created(directory)})
            shutil.copytree(directory / "metastore_db", directory / "unused")  # without any server's locations
        classes = directory / "classes.jsa"
        pid = spawn(runtime, directory, port, settings, classes_to=classes)
        start = began(pid)
        try:
            wait(pid, start, port, instance, directory / "metastore.log", timedelta(seconds=180))
        finally:
            end(pid, start, timedelta(seconds=60))  # it writes its classes when it ends
        if classes.exists():
            runtime.classes.parent.mkdir(parents=True, exist_ok=True)
            os.replace(classes, runtime.classes)
        if runtime.hive.name == PYSPARK:
            _repair(runtime, directory)
            os.replace(directory / "metastore_db", kept)
        else:
            os.replace(directory / "unused", kept)


def _created(directory: Path) -> str:
    return f"jdbc:derby:{directory / 'metastore_db'};create=true"


def _made_by_the_server(directory: Path) -> dict[str, str]:
    """Returns settings with which 2.3 creates its tables when it starts."""
    return {
        CONNECTION_URL: _created(directory),
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification.record.version": "true",
        "datanucleus.autoStartMechanism": "Classes",
        "datanucleus.autoStartClassNames": ",".join(_persistent_classes(pyspark_jars())),
    }


def ensure_schema(runtime: Runtime, directory: Path, settings: Mapping[str, str]) -> None:
    """Creates the metastore's tables in the database that `settings` name, unless it has them."""
    with _schematool(runtime, directory, settings) as run:
        if run("-info").returncode:
            _make_schema(runtime.hive, run)


def make_schema(runtime: Runtime, directory: Path, settings: Mapping[str, str]) -> None:
    """Creates the metastore's tables in the empty database that `settings` name."""
    with _schematool(runtime, directory, settings) as run:
        _make_schema(runtime.hive, run)


_Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _make_schema(hive: Hive, run: _Run) -> None:
    """Runs schematool. Raises MetastoreStartError with the tool's output."""
    steps = [("-initSchemaTo", hive.schema)]
    if hive.name == PYSPARK or (UPGRADES / f"upgrade-{hive.schema}-to-{hive.version}.derby.sql").exists():
        steps.append(("-upgradeSchemaFrom", hive.schema))
    for step in steps:
        done = run(*step)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise MetastoreStartError(
                f"the metastore's tables cannot be created ({' '.join(step)}):\n{said}",
                hint="check the database's URL, user and password, and that it is empty",
            )


@contextmanager
def _schematool(runtime: Runtime, directory: Path, settings: Mapping[str, str]) -> Iterator[_Run]:
    """Yields a function that runs Hive's schematool, which reads its scripts from a home prepared here."""
    hive, conf = runtime.hive, write_conf(runtime, directory, settings)
    kind = "postgres" if settings[CONNECTION_URL].startswith(POSTGRES) else "derby"
    archive = distribution(hive, runtime.java, runtime.env) / "archive"
    with tempfile.TemporaryDirectory(dir=directory, prefix=".schema.") as home:
        scripts = Path(home) / "scripts" / "metastore" / "upgrade" / kind
        shutil.copytree(archive / "scripts" / "metastore" / "upgrade" / kind, scripts)
        order = scripts / f"upgrade.order.{kind}"
        if hive.name == PYSPARK:
            before, _, _ = order.read_text().partition("2.3.0-to-")
            order.write_text(before)
        elif (upgrade := UPGRADES / f"upgrade-{hive.schema}-to-{hive.version}.{kind}.sql").exists():
            shutil.copy(upgrade, scripts)
            order.write_text(f"{hive.schema}-to-{hive.version}\n")
        env = environment(runtime, conf) | {"METASTORE_HOME": home, "HIVE_HOME": home}
        java = [str(runtime.java.executable), *open_modules(), f"-Dderby.stream.error.file={directory / 'derby.log'}"]

        def run(*step: str) -> subprocess.CompletedProcess[str]:
            command = [*java, "-cp", runtime.class_path, hive.schematool, "-dbType", kind, *step]
            return subprocess.run(
                command, env=env, cwd=directory, capture_output=True, text=True, errors="replace", timeout=300
            )

        yield run


def _repair(runtime: Runtime, directory: Path) -> None:
    script = directory / "repair.sql"
    script.write_text(_REPAIRS.format(database=directory / "metastore_db", lock_tables=_lock_tables(pyspark_jars())))
    done = subprocess.run(
        [
            runtime.java.executable,
            f"-Dderby.stream.error.file={directory / 'derby.log'}",
            "-Dij.showErrorCode=true",
            "-cp",
            runtime.class_path,
            "org.apache.derby.tools.ij",
            script,
        ],
        env=dict(runtime.env),
        cwd=directory,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("ERROR") and "08006" not in line]
    if failed or done.returncode or "ERROR 08006" not in done.stdout:  # 08006: shut down, as requested
        raise MetastoreStartError(
            "the template database cannot be repaired:\n"
            + "\n".join(failed or [done.stdout[-2000:], done.stderr[-2000:]]),
            hint=f"Derby's log ends with: {last_lines(directory / 'derby.log')}",
        )


def _persistent_classes(jars: Path) -> list[str]:
    """Returns every class of the metastore that has a table of its own."""
    with zipfile.ZipFile(next(jars.glob("hive-metastore-*.jar"))) as jar:
        declared = re.findall(r'<class name="(\w+)"([^>]*)', jar.read("package.jdo").decode())
    package = "org.apache.hadoop.hive.metastore.model"
    return [f"{package}.{name}" for name, attributes in declared if 'embedded-only="true"' not in attributes]


def _lock_tables(jars: Path) -> str:
    """Returns the statements that create the tables of locks and transactions, which no JDO class maps: clients such as
    Iceberg take locks. The server has them in a class that only its own tests call; they are read from it."""
    with zipfile.ZipFile(next(jars.glob("hive-metastore-*.jar"))) as jar:
        code = jar.read("org/apache/hadoop/hive/metastore/txn/TxnDbUtil.class")
    # A string in a class file: a byte 1, two bytes of length, the text (Java Virtual Machine Specification, 4.4.7).
    found = re.finditer(rb"\x01(..)(?=CREATE |INSERT )", code, re.DOTALL)
    statements = [code[each.end() : each.end() + int.from_bytes(each[1])].decode() for each in found]
    return "".join(f"{statement};\n" for statement in statements)
