"""The metastore's end of one client's connection: sends bytes, and executes calls whose complete answer is required.

The connection belongs to one client: the user set on it applies to that client only.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Literal

import msgspec

from replicator.captures.gateways.client_authentication import LOOKED_AT, Channel
from replicator.captures.gateways.drops import Reply, UpstreamLost, refusal
from replicator.captures.gateways.local_names import guess, in_their_words
from replicator.captures.gateways.messages import (
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    REPLY,
    SHAPES,
    Garbage,
    MessageHeader,
    application_error,
    parse_header,
)
from replicator.captures.gateways.targets import Bytes, Extent
from replicator.core.connections import MetastoreConfig
from replicator.metastore.connection import Opener
from replicator.metastore.transport import Framed, FrameError

CHUNK = 256 * 1024


class ServerEnd:
    """A metastore connection. It counts as lost if the server neither reads nor answers for `timeout` seconds."""

    def __init__(self, channel: Channel, timeout: float) -> None:
        self._channel, self._timeout = channel, timeout
        channel.settimeout(timeout)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def pending(self) -> bool:
        """True if there are buffered bytes that a poll does not report."""
        return self._channel.pending

    def send(self, data: Bytes) -> None:
        """Sends bytes. Raises UpstreamLost."""
        try:
            self._channel.sendall(data)
        except OSError as error:
            raise UpstreamLost(said(error)) from error

    def receive_into(self, buffer: Bytes) -> int | None:
        """Returns the bytes received, at least one; None if no complete frame is there yet. Raises UpstreamLost."""
        try:
            size = self._channel.receive_into(buffer)
        except FrameError as error:
            raise UpstreamLost(f"its answer is invalid: {error}") from error
        except OSError as error:
            raise UpstreamLost(said(error)) from error
        if size == 0:
            raise UpstreamLost("it closed the connection")
        return size

    def ask(self, header: MessageHeader, message: bytes) -> Reply:
        """Sends a complete call, whose head is `header`, and reads its complete answer. Raises UpstreamLost.

        The call is sent with a sequence number that its client cannot know, and only an answer with that number is
        accepted: the rest of an earlier answer, even one with crafted bytes, is never mistaken for this one."""
        number = secrets.randbits(31)
        self.send(replace(header, sequence=number).encode() + message[len(header.encode()) :])
        record, buffer = bytearray(), bytearray(CHUNK)
        try:
            while (answer := parse_header(record[:512])) is None:
                record += memoryview(buffer)[: self._wait_into(buffer)]
            if (answer.sequence, answer.name) != (number, header.name):
                raise UpstreamLost("it answered another call")
            extent, at = Extent(), answer.size
            while True:
                at += extent.feed(memoryview(record)[at:])
                if extent.ended:
                    break
                record += memoryview(buffer)[: self._wait_into(buffer)]
        except Garbage as error:
            raise UpstreamLost(f"its answer is invalid: {error}") from error
        given = replace(answer, sequence=header.sequence).encode() + record[answer.size : at]
        return Reply(given, answer.kind == REPLY and not any(extent.fields))

    def shut(self) -> None:
        """Makes the metastore count as lost for any thread that waits for it. May be called from any thread."""
        self._channel.shut(socket.SHUT_RDWR)

    def close(self) -> None:
        self._channel.close()

    def _wait_into(self, buffer: Bytes) -> int:
        while True:
            if not self.pending and not self._poll.poll(self._timeout * 1000):
                raise UpstreamLost("no answer in time")
            if size := self.receive_into(buffer):
                return size


def said(error: OSError) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return error.strerror or str(error)


# ---- interface -------------------------------------------------------------------------------------------------------
# Each method of the metastore's interface, 2.3 to 4.2, and the handling of its calls. Pure.
#
# A method that deletes tables' files is intercepted (`SHAPES`) or refused. Methods listed here are forwarded, and so
# are methods with the name of a read. Any other method is from a server unknown to this release, and is refused.


Handling = Literal["pass", "intercept", "refuse", "unknown"]

REFUSED = frozenset({"drop_catalog"})
"""Methods that delete directories and have no option to prevent it: a catalog is deleted with all its contents."""

REMOVING = frozenset({"cm_recycle", "drop_index_by_name", "submit_for_cleanup"})
"""Methods that are forwarded although they may delete files: those that the client could remove itself (moved to the
server's own `$cmroot`), an index's, which can be rebuilt (2.3), and those that its cleaner removes
(docs/gateway.md)."""

READS = ("get_", "list_", "show_", "find_", "fetch_")

_NAMES = """
abort_Compactions abort_txn abort_txns add_check_constraint add_default_constraint add_dynamic_partitions
add_foreign_key add_index add_master_key add_not_null_constraint add_package add_partition
add_partition_with_environment_context add_partitions add_partitions_pspec add_partitions_req add_primary_key
add_replication_metrics add_runtime_stats add_schema_version add_serde add_token add_unique_constraint
add_write_ids_to_min_history add_write_notification_log add_write_notification_log_in_batch aliveSince
allocate_table_write_ids alter_catalog alter_database alter_database_req alter_dataconnector alter_dataconnector_req
alter_function alter_index alter_ischema alter_partition alter_partition_with_environment_context alter_partitions
alter_partitions_req alter_partitions_with_environment_context alter_resource_plan alter_table alter_table_req
alter_table_with_cascade alter_table_with_environment_context alter_wm_pool alter_wm_trigger append_partition
append_partition_by_name append_partition_by_name_with_environment_context append_partition_req
append_partition_with_environment_context cache_file_metadata cancel_delegation_token check_lock clear_file_metadata
commit_txn compact compact2 create_catalog create_database create_database_req create_dataconnector
create_dataconnector_req create_function create_ischema create_or_drop_wm_trigger_to_pool_mapping
create_or_update_wm_mapping create_resource_plan create_role create_stored_procedure create_table create_table_req
create_table_with_constraints create_table_with_environment_context create_type create_wm_pool create_wm_trigger
delete_column_statistics_req delete_partition_column_statistics delete_table_column_statistics drop_constraint
drop_dataconnector drop_dataconnector_req drop_function drop_ischema drop_package drop_resource_plan drop_role
drop_schema_version drop_stored_procedure drop_type drop_wm_mapping drop_wm_pool drop_wm_trigger exchange_partition
exchange_partitions fire_listener_event flushCache getCounter getCounters getCpuProfile getMetaConf getName getOption
getOptions getStatus getStatusDetails getVersion grant_privileges grant_revoke_privileges grant_revoke_role grant_role
heartbeat heartbeat_lock_materialization_rebuild heartbeat_txn_range isPartitionMarkedForEvent lock
map_schema_version_to_serde mark_cleaned mark_compacted mark_failed mark_refused markPartitionForEvent open_txns
partition_name_has_valid_characters partition_name_to_spec partition_name_to_vals put_file_metadata refresh_privileges
reinitialize remove_compaction_metrics_data remove_master_key remove_token rename_partition rename_partition_req
renew_delegation_token repl_tbl_writeid_state revoke_privileges revoke_role scheduled_query_maintenance
scheduled_query_poll scheduled_query_progress seed_txn_id seed_write_id set_aggr_stats_for set_hadoop_jobid
set_properties set_schema_version_state set_ugi setMetaConf setOption shutdown translate_table_dryrun unlock
update_compaction_metrics_data update_compactor_state update_creation_metadata update_master_key
update_partition_column_statistics update_partition_column_statistics_req update_table_column_statistics
update_table_column_statistics_req update_transaction_statistics validate_resource_plan
"""
PASSED = REMOVING | frozenset(_NAMES.split())
"""Before adding a name, check what the server does with files in that method."""

HIDDEN = frozenset(SHAPES) | REFUSED
"""Names that no other call may contain as a text, see `targets.MethodNames`."""


def handling(name: str) -> Handling:
    """Returns the handling of a call by its method's name."""
    if name in SHAPES:
        return "intercept"
    if name in REFUSED:
        return "refuse"
    return "pass" if name in PASSED or name.startswith(READS) else "unknown"


# ---- refusals --------------------------------------------------------------------------------------------------------
# Calls that end their connection: the answer for the client, and the reason for the log.


class Refused(Exception):
    """Raised to end a connection. answer: sent to the client before; counted: it counts as a refused call."""

    def __init__(self, answer: bytes, reason: str, *, counted: bool = False) -> None:
        super().__init__(reason)
        self.answer, self.counted = answer, counted


def more(header: MessageHeader) -> Refused:
    """Returns the refusal of a second call before the first one was answered."""
    message = "the gateway accepts one call at a time"
    return Refused(application_error(header, PROTOCOL_ERROR, message), f"sent more before {header.name} was answered")


def hidden(header: MessageHeader, name: str) -> Refused:
    """Returns the refusal of a call that a server may read as another one, see `targets.MethodNames`."""
    message = f"a string in {header.name} is {name}: the metastore may read it as a call that deletes data"
    return Refused(application_error(header, PROTOCOL_ERROR, message), message, counted=True)


def garbage(header: MessageHeader | None, error: Garbage) -> Refused:
    """Returns the refusal of a call that cannot be parsed."""
    message = f"the gateway cannot parse this: {error}"
    where = f" in {header.name}" if header else ""
    return Refused(application_error(header, PROTOCOL_ERROR, message), f"garbage{where}: {error}")


def strange(begin: bytes, error: Garbage) -> Refused:
    """Returns the refusal of a connection whose first bytes are not a call, in the protocol that they seem to use."""
    message = f"the gateway cannot parse this: {error}{guess(begin[:LOOKED_AT])}"
    answer = in_their_words(begin[:LOOKED_AT], message) or application_error(None, PROTOCOL_ERROR, message)
    return Refused(answer, f"garbage: {message}")


def large(header: MessageHeader, why: str) -> Refused:
    message = f"{header.name} is too large to be read completely: {why}; nothing was dropped: name fewer partitions"
    return Refused(refusal(header, message), message, counted=True)


def lost(header: MessageHeader, reason: str) -> Refused:
    """Returns the refusal after the metastore was lost during a forwarded call."""
    message = f"the connection to the metastore was lost during {header.name}: {reason}"
    return Refused(application_error(header, INTERNAL_ERROR, message), message)


def away(header: MessageHeader, reason: str) -> Refused:
    """Returns the refusal if the metastore cannot be reached, or refuses the client."""
    return Refused(application_error(header, INTERNAL_ERROR, reason), reason)


# ---- queries of the gateway ------------------------------------------------------------------------------------------
# The metastore as the target of clients' own connections, each with its client's identity.


USERS = 1000  # maximum number of users whose delegation tokens are cached


class Asked:
    """A factory of connections. needs_user: calls of unknown users are refused. knows_users: the gateway answers calls
    about identity. acts_for: connections are the users' own, by set_ugi or a token; else the gateway's."""

    def __init__(
        self,
        metastore: MetastoreConfig,
        timeout: float,
        *,
        needs_user: bool = False,
        knows_users: bool = False,
        acts_for: bool = True,
    ) -> None:
        self.needs_user, self.knows_users = needs_user, knows_users
        self._metastore, self._timeout, self._acts_for = metastore, timeout, acts_for
        self._openers: OrderedDict[str | None, Opener] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, user: str | None) -> ServerEnd:
        """Opens a connection with the identity of `user`; never with another user's instead. Raises MetastoreError."""
        transport = self._opener(user).open(lambda: None).transport
        layer = transport.layer if isinstance(transport, Framed) else None
        return ServerEnd(Channel(transport.socket, layer), self._timeout)

    def _opener(self, user: str | None) -> Opener:
        with self._lock:
            if user not in self._openers:
                config = msgspec.structs.replace(self._metastore, user=user) if self._acts_for else self._metastore
                self._openers[user] = Opener(config, self._timeout)
            self._openers.move_to_end(user)
            while len(self._openers) > USERS:
                self._openers.popitem(last=False)
            return self._openers[user]
