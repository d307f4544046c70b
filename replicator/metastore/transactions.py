"""Transactions of a metastore since Hive 3, and the write ids that they have in tables.

A replica's ids are the source's: `set_write_ids` states those of a new table, and transactions that stand for the
source's add the later ones. Such a transaction is known by the source's id and a policy, a name that is chosen here:
opening, allocating and ending it twice does nothing more. Source: Hive's TxnHandler, as run on 3.1.3, 4.0.1 and 4.2.0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller as call
from typing import TYPE_CHECKING, Any, cast

import xxhash
from hmsclient.genthrift.hive_metastore import ttypes

from replicator.core.formats.transactional_table import NO_TRANSACTIONS, NO_WRITE_IDS
from replicator.core.grouping import batched
from replicator.core.model import Name, Part, Partition, Table, WriteIds
from replicator.errors import MetastoreError
from replicator.metastore import requests
from replicator.metastore.client import MetastoreReader
from replicator.metastore.concurrency import is_since_3
from replicator.metastore.fields import method
from replicator.metastore.requests import Send

TABLES = 500  # tables in one call
TRANSACTIONS = 1000  # transactions in one call
STRICT = "hive.strict.managed.tables"  # setting of Hive 3
NO_LIMIT = 2**63 - 1  # Hive's smallest open id if none is open
OPEN = 3  # TxnState of an open one
COMPACTING = ("initiated", "working")  # states of a compaction before its directory is complete
REPLICATED = 1  # TxnType.REPL_CREATED, since Hive 4: without it the id is that of the server's own transaction
_UNNAMED = 1 << 60  # transactions of the source that no event named have ids from here on
OWNER = "replicator"  # begin of the user of transactions that stand for the source's; the source's id follows
LONG = 64  # characters of a database's name


def why_without(source: MetastoreReader, target: MetastoreReader) -> str:
    """Returns the reason why transactional tables are not replicated between two metastores; empty if they are."""
    if not source.keeps_transactions():
        return NO_WRITE_IDS
    return "" if target.keeps_transactions() else NO_TRANSACTIONS


def is_strict(target: MetastoreReader) -> bool:
    """Returns True if a server refuses managed tables that are not transactional."""
    return target.setting(STRICT).strip().lower() == "true"


def policy_of(source: str, database: str) -> str:
    """Returns the name under which a server knows transactions of a source in one of its databases."""
    return f"{OWNER}.{source}.{_short(database)}"


def _short(database: str) -> str:
    """Returns a database's name, or a hash of a long one: a server keeps at most 128 characters (TXN_HOST)."""
    return database if len(database) <= LONG else xxhash.xxh3_64_hexdigest(database.encode())


def _is_ours(user: str) -> bool:
    return user.startswith(f"{OWNER}:")


def unnamed(name: Name, write_id: int) -> int:
    """Returns an id for the transaction of a table's write id that no event named: the same each time."""
    return _UNNAMED + (xxhash.xxh3_64_intdigest(f"{name[0]}.{name[1]}:{write_id}".encode()) >> 5)


def not_shown(source: WriteIds, target: WriteIds) -> list[int]:
    """Returns the write ids that are committed at the source, and not on the target."""
    invalid = {*source.open, *source.aborted}
    lacking = range(target.high + 1, source.high + 1)
    return [each for each in (*target.open, *target.aborted, *lacking) if each <= source.high and each not in invalid]


def is_set(bits: bytes | str | None, index: int) -> bool:
    """Returns a bit of Java's BitSet, as bytes."""
    packed = bits.encode("latin-1") if isinstance(bits, str) else bits or b""
    return index // 8 < len(packed) and bool(packed[index // 8] >> index % 8 & 1)


def parted(ids: Sequence[int], bits: bytes | str | None) -> tuple[list[int], list[int]]:
    """Returns open and aborted ids; `bits`: which of them are aborted."""
    found: tuple[list[int], list[int]] = [], []
    for index, each in enumerate(ids):
        found[is_set(bits, index)].append(each)
    return found


def snapshot_of(answer: Any) -> str:
    """Returns the transactions that a reader sees, as Hive's ValidReadTxnList writes them."""
    open_, aborted = parted(list(answer.open_txns or ()), answer.abortedBits)
    first = min(open_, default=NO_LIMIT)
    return f"{answer.txn_high_water_mark}:{first}:{','.join(map(str, open_))}:{','.join(map(str, aborted))}"


# ---- statistics ------------------------------------------------------------------------------------------------------
# A server of Hive 4 takes statistics of a transactional table from the writer of a write id only, and deletes none.


OF_WRITERS = "for a transactional table"  # its answer to any other client
_DAYS = -719_162, 2_932_896  # of the years 1 and 9999, from 1970
_MOST = 10**38 - 1  # of a decimal


def _decimal(number: int) -> Any:
    return ttypes.Decimal(unscaled=number.to_bytes(17, "big", signed=True), scale=0)


def _timestamp(day: int) -> Any:
    return ttypes.Timestamp(secondsSinceEpoch=day * 86_400)


_BOUNDS: dict[str, tuple[Any, Any]] = {
    "LongColumnStatsData": (-(2**63), 2**63 - 1),
    "DoubleColumnStatsData": (-sys.float_info.max, sys.float_info.max),
    "DecimalColumnStatsData": (_decimal(-_MOST), _decimal(_MOST)),
    "DateColumnStatsData": (ttypes.Date(_DAYS[0]), ttypes.Date(_DAYS[1])),
    "TimestampColumnStatsData": (_timestamp(_DAYS[0]), _timestamp(_DAYS[1])),
}


@dataclass(frozen=True)
class Writer:
    """A write id that is committed, and all that a reader then sees of the table, as Hive's ValidWriteIdList."""

    id: int
    valid: str

    @classmethod
    def newest(cls, name: Name, ids: WriteIds) -> Writer:
        """Returns the newest; of a table without any, the first that a writer will have."""
        invalid = {*ids.open, *ids.aborted}
        newest = next((each for each in range(ids.high, 0, -1) if each not in invalid), 1)
        lists = (str(min(ids.open, default=NO_LIMIT)), *(",".join(map(str, some)) for some in (ids.open, ids.aborted)))
        return cls(newest, ":".join((".".join(name), str(max(ids.high, newest)), *lists)))

    def without_view(self) -> Writer:
        """Returns the writer as one that sees no write id: a server then removes the flag that statistics are exact, as
        another may have written them (ObjectStore.isCurrentStatsValidForTheQuery)."""
        return Writer(self.id, f"{self.valid.partition(':')[0]}:0:0:0:")

    def alter_table(self, db: str, name: str, table: Table) -> Send:
        struct = requests.struct_of(table)
        struct.writeId = self.id
        return method("alter_table_req", ttypes.AlterTableRequest(table=struct, **self._about(db, name)))

    def alter_partitions(self, db: str, name: str, partitions: Sequence[Partition]) -> Send:
        structs = [requests.partition_to_thrift(db, name, each) for each in partitions]
        for each in structs:
            each.writeId = self.id
        request = ttypes.AlterPartitionsRequest(partitions=structs, **self._about(db, name))
        return method("alter_partitions_req", request)

    def _about(self, db: str, name: str) -> dict[str, Any]:
        stated = {"writeId": self.id, "validWriteIdList": self.valid, "environmentContext": requests.altering()}
        return {"dbName": db, "tableName": name, **stated}

    def set_statistics(self, structs: Sequence[Any], engine: str) -> Send:
        """Sets those of one table, or of partitions of one."""
        request = ttypes.SetPartitionsStatsRequest(colStats=list(structs), needMerge=False)
        request.engine, request.writeId, request.validWriteIdList = engine, self.id, self.valid
        return call("set_aggr_stats_for", request)


def without_values(statistics: Any) -> Any:
    """Returns ColumnStatistics with bounds that hold for any values, and without sketches: a server keeps what is not
    set."""
    for data in (each.statsData for each in statistics.statsObj):
        for kind in (kind for kind in vars(data).values() if kind is not None):
            given, bounds = vars(kind), _BOUNDS.get(type(kind).__name__)
            for name in [name for name in ("bitVectors", "histogram") if given.get(name)]:
                setattr(kind, name, b"")
            if bounds and given.get("lowValue") is not None:
                kind.lowValue, kind.highValue = bounds
    return statistics


class TransactionCalls:
    """The part of a metastore's client for transactions; see `client`."""

    if TYPE_CHECKING:

        def _read(self, what: str, send: Send) -> Any: ...

        def _change(self, what: str, send: Send) -> Any: ...

        @property
        def bound_catalog(self) -> str | None: ...

        @property
        def default_catalog(self) -> str: ...

    def keeps_transactions(self) -> bool:
        return is_since_3(cast(MetastoreReader, self)) and self.bound_catalog in (None, self.default_catalog)

    def snapshot(self) -> str:
        return snapshot_of(self._read("open transactions", call("get_open_txns")))

    def write_ids(self, tables: Sequence[Name], snapshot: str) -> dict[Name, WriteIds]:
        found = {}
        for some in batched(tables, TABLES):
            names = [f"{db}.{name}" for db, name in some]
            request = ttypes.GetValidWriteIdsRequest(fullTableNames=names, validTxnList=snapshot)
            answer = self._read("valid write ids", method("get_valid_write_ids", request))
            for each in answer.tblValidWriteIds:
                db, _, name = each.fullTableName.partition(".")
                open_, aborted = parted(each.invalidWriteIds or (), each.abortedBits)
                found[db, name] = WriteIds(each.writeIdHighWaterMark, tuple(open_), tuple(aborted))
        return found

    def set_write_ids(self, db: str, table: str, high: int) -> None:
        state = f"{db}.{table}:{high}:{NO_LIMIT}::"
        about = {"user": OWNER, "hostName": OWNER, "dbName": db, "tableName": table}
        request = ttypes.ReplTblWriteIdStateRequest(validWriteIdlist=state, **about)
        self._change(f"write ids of {db}.{table}", method("repl_tbl_writeid_state", request))

    def open_replicated(self, policy: str, transactions: Sequence[int]) -> dict[int, int]:
        return {each: self._open(policy, each) for each in transactions}

    def _open(self, policy: str, transaction: int) -> int:
        """One by one: in a call that names some that are open, a server opens none of the others."""
        request = ttypes.OpenTxnRequest(num_txns=1, user=f"{OWNER}:{transaction}", hostname=policy)
        request.replPolicy, request.replSrcTxnIds, request.txn_type = policy, [transaction], REPLICATED
        [opened] = self._change("open transactions", call("open_txns", request)).txn_ids
        return int(opened)

    def allocate_write_ids(self, db: str, table: str, policy: str, ids: Sequence[tuple[int, int]]) -> None:
        """Ids in one call go to its transactions in the order of these (TxnHandler.allocateTableWriteIds)."""
        for some in batched(ids, TRANSACTIONS):
            pairs = [ttypes.TxnToWriteId(txnId=transaction, writeId=each) for transaction, each in some]
            request = ttypes.AllocateTableWriteIdsRequest(
                dbName=db, tableName=table, replPolicy=policy, srcTxnToWriteIdList=pairs
            )
            self._change(f"allocate write ids of {db}.{table}", method("allocate_table_write_ids", request))

    def end_replicated(self, policy: str, transaction: int, *, commit: bool) -> None:
        request = (ttypes.CommitTxnRequest if commit else ttypes.AbortTxnRequest)(txnid=transaction)
        request.replPolicy, request.txn_type = policy, REPLICATED
        self._change(f"end transaction {transaction}", call("commit_txn" if commit else "abort_txn", request))

    def abort_replicated(self, database: str) -> int:
        """Names the source's ids: Hive 4 refuses an abort by its own id, as one outside of replication."""
        of = f".{_short(database)}"
        ours = [each for each in self._open_now() if _is_ours(each.user) and each.hostname.endswith(of)]
        for each in ours:
            self.end_replicated(each.hostname, int(each.user.removeprefix(f"{OWNER}:")), commit=False)
        return len(ours)

    def readers_open(self) -> frozenset[int]:
        return frozenset(each.id for each in self._open_now() if not _is_ours(each.user))

    def lock_parts(self, parts: Sequence[Part], holder: str) -> int | None:
        level, about = ttypes.LockLevel, {"type": ttypes.LockType.EXCLUSIVE}
        about |= {"operationType": ttypes.DataOperationType.NO_TXN}
        some = [(level.PARTITION if partition else level.TABLE, *part, partition or None) for *part, partition in parts]
        components = [
            ttypes.LockComponent(level=at, dbname=db, tablename=table, partitionname=partition, **about)
            for at, db, table, partition in some
        ]
        request = ttypes.LockRequest(component=components, user=OWNER, hostname=holder)
        answer = self._change(f"lock {len(parts)} parts of tables", call("lock", request))
        if answer.state == ttypes.LockState.ACQUIRED:
            return int(answer.lockid)
        self.unlock(answer.lockid)  # it waits, and others would wait for it
        return None

    def end_locks(self, holder: str, tables: Collection[Name]) -> None:
        locks = self._read("locks", call("show_locks", ttypes.ShowLocksRequest())).locks or ()
        held = [each for each in locks if (each.user, each.hostname) == (OWNER, holder)]
        for lock in {each.lockid for each in held if (each.dbname, each.tablename) in tables}:
            self.unlock(lock)

    def keep_lock(self, lock: int) -> None:
        self._change(f"keep lock {lock}", call("heartbeat", ttypes.HeartbeatRequest(lockid=lock)))

    def unlock(self, lock: int) -> None:
        with suppress(MetastoreError):  # the server has ended it, or ends it without heartbeats
            self._change(f"release lock {lock}", call("unlock", ttypes.UnlockRequest(lockid=lock)))

    def _change_as_writer(self, what: str, name: Name, send: Send, stated: Callable[[Writer], Send]) -> None:
        """Changes something; in the name of a writer if the server refuses it of another."""
        try:
            self._change(what, send)
        except MetastoreError as error:
            if OF_WRITERS not in error.message:
                raise
            self._change(what, stated(self._writer(name)))

    def _writer(self, name: Name) -> Writer:
        return Writer.newest(name, self.write_ids([name], self.snapshot())[name])

    def compacting(self, db: str, table: str) -> frozenset[str]:
        answer = self._read("compactions", call("show_compact", ttypes.ShowCompactRequest()))
        ours = (each for each in answer.compacts or () if (each.dbname, each.tablename) == (db, table))
        return frozenset(each.partitionname or "" for each in ours if each.state in COMPACTING)

    def _open_now(self) -> list[Any]:
        answer = self._read("open transactions", call("get_open_txns_info"))
        return [each for each in answer.open_txns or () if each.state == OPEN]
