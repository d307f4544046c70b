"""Transactional tables of a `Lab`, written and read by Hive itself on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from command_line import Answer, command
from hive_metastore import ttypes
from hive_objects import hive_client
from hive_sql import HiveSql
from lab import Lab
from metastores import shared
from names import WORKER
from pool import Pool
from waiting import eventually

from replicator.metastore.embedded.running import Running

ORC = 'stored as orc tblproperties("transactional"="true")'
INSERT_ONLY = 'stored as textfile tblproperties("transactional"="true", "transactional_properties"="insert_only")'
OPEN = 3  # TxnState
COMPACTING = {"hive.compactor.initiator.on": "true", "hive.compactor.worker.threads": "1"}
COMPACTING_4 = {
    **COMPACTING,
    "hive.metastore.runworker.in": "metastore",
    "hive.compactor.check.interval": "2s",
    "hive.compactor.cleaner.run.interval": "1s",
}


@contextmanager
def acid_sides(pool: Pool) -> Iterator[tuple[Running, Running, HiveSql, HiveSql]]:
    """A metastore that compacts, one that does not, and Hive on each. They are this worker's: in Derby, transactions
    and notifications of several clients block each other, and Hive then fails."""
    with shared(pool) as metastore:
        source = metastore(f"acid-source-{WORKER}", hive="3.1", host="0.0.0.0", settings=COMPACTING)
        target = metastore(f"acid-target-{WORKER}", hive="3.1", host="0.0.0.0")
        warehouses = Path(source.warehouse), Path(target.warehouse)
        with HiveSql(source.uri, warehouses[0]) as here, HiveSql(target.uri, warehouses[1]) as there:
            yield source, target, here, there


class AcidLab(Lab):
    """`here` runs Hive on the source, `there` on the target. Tables are called `{db}.t` in statements."""

    def __init__(self, source: Running, target: Running, here: HiveSql, there: HiveSql, place: Path) -> None:
        super().__init__(source, target, place, warehouse=Path(target.warehouse))
        self.keys["target_cmroot"] = str(place / "target-cmroot")
        self.target_cmroot = place / "target-cmroot"
        self.hive, self.target_running, self._here, self._there = source, target, here, there
        self.side = self.name  # the name of the database, on both sides

    def of_policy(self) -> AcidLab:
        """Statements are about the policy's database from here on."""
        self.db("a")
        self.side = f"{self.name}_a"
        return self

    def load_arguments(self, dump: Path, *, target: str | None = None) -> list[str]:
        return [*super().load_arguments(dump, target=target), "--target-cmroot", str(self.target_cmroot)]

    # ---- statements -------------------------------------------------------------------------------------------------

    def run(self, *statements: str) -> list[list[str]]:
        return self._here(*(each.replace("{db}", self.side) for each in statements))

    def run_there(self, *statements: str) -> list[list[str]]:
        return self._there(*(each.replace("{db}", self.side) for each in statements))

    def rolled_back(self, statement: str) -> None:
        self._here.rolled_back(statement.replace("{db}", self.side))

    def make(self, name: str = "t", kind: str = ORC, keys: str = "") -> None:
        self.run(f"create table {{db}}.{name} (id int, name string) {keys} {kind}")

    def insert(self, *ids: int, name: str = "t", value: str = "n") -> None:
        rows = ", ".join(f"({each}, '{value}{each}')" for each in ids)
        self.run(f"insert into {{db}}.{name} values {rows}")

    # ---- states -----------------------------------------------------------------------------------------------------

    def rows(self, name: str = "t", what: str = "row__id, *") -> list[list[str]]:
        """The source's rows with their ids; of an insert-only table without."""
        return self.run(f"select {what} from {{db}}.{name}")

    def shown(self, name: str = "t", what: str = "row__id, *") -> list[list[str]]:
        """The replica's rows."""
        return self.run_there(f"select {what} from {{db}}.{name}")

    def ids(self, name: str = "t") -> list[int]:
        """The replica's values of `id`."""
        return sorted(int(row[0]) for row in self.shown(name, "id"))

    def directories(self, name: str = "t", *, replica: bool = False) -> list[str]:
        side = self.target if replica else self.source
        place = urlsplit(str(side.metastore.table(self.side, name).location)).path
        return sorted(path.name for path in Path(place).iterdir() if path.name[0] not in "._")

    def compact(self, kind: str, name: str = "t") -> None:
        """Waits until the source's metastore has compacted a table, and removed the old directories."""
        self.run(f'alter table {{db}}.{name} compact "{kind}"')
        mark, before = ("base_" if kind == "major" else "delta_"), set(self.directories(name))
        eventually(lambda: self._is_compacted(name))
        assert any(each.startswith(mark) for each in set(self.directories(name)) - before)

    def _is_compacted(self, name: str) -> bool:
        states = [row[5] for row in self.run("show compactions") if row[1:3] == [self.side, name]]
        return not {"initiated", "working"} & set(states)

    def compacted_by_hive_4(self, name: str = "t") -> None:
        """Likewise, by a server of Hive 4, whose names Hive 3 cannot read: see the replica's rows."""
        before = self.directories(name)
        with hive_client(self.hive) as client:
            request = ttypes.CompactionRequest(dbname=self.side, tablename=name, type=ttypes.CompactionType.MAJOR)
            client.thrift.compact2(request)
        eventually(lambda: any("_v" in each for each in set(self.directories(name)) - set(before)))

    # ---- replication ------------------------------------------------------------------------------------------------

    def replicate(self) -> None:
        """The next dump, loaded."""
        since = self.last if self.dumps else None
        for answer in (self.dump(since=since), self.load()):
            assert answer.code == 0, answer

    def verified(self) -> Answer:
        sides = ["--source", self.source_uri, "--target", self.target_uri, "--db", self.side]
        return command("verify", *sides, "--engine", "local")

    def repair_arguments(self) -> list[str]:
        sides = ["--source", self.source_uri, "--target", self.target_uri, "--db", self.side]
        roots = ["--cmroot", str(self.cmroot), "--target-cmroot", str(self.target_cmroot)]
        return ["repair", *sides, *roots, "--allow-removals", "--engine", "local"]

    def repaired(self) -> Answer:
        return command(*self.repair_arguments())

    def is_equal(self, *names: str) -> None:
        """Both sides show the same rows with the same ids, and `verify` finds no difference."""
        for name in names or ("t",):
            assert self.shown(name) == self.rows(name), name
        answer = self.verified()
        assert answer.code == 0, answer

    def end_open(self, *, commit: bool = True) -> None:
        """The newest open transaction of this database ends. Other tests have theirs on the same server."""
        with hive_client(self.hive) as client:
            open_ = {each.id for each in client.thrift.get_open_txns_info().open_txns if each.state == OPEN}
            locks = client.thrift.show_locks(ttypes.ShowLocksRequest(dbname=self.side)).locks
            mine = max(open_ & {each.txnid for each in locks})
            request = (ttypes.CommitTxnRequest if commit else ttypes.AbortTxnRequest)(txnid=mine)
            (client.thrift.commit_txn if commit else client.thrift.abort_txn)(request)


@contextmanager
def acid_lab(pool: Pool, place: Path) -> Iterator[AcidLab]:
    with acid_sides(pool) as sides:
        made = AcidLab(*sides, place)
        made.source.create()
        yield made
