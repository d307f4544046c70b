"""`status`: how far a target is, and how far behind; of a policy, the same as `lag`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from cmroot.root import open_existing
from replicator.commands.base import Options, Where, verb
from replicator.commands.lag import lag
from replicator.errors import UsageError
from replicator.policies.lag import Lag
from replicator.policies.status import Status
from replicator.policies.status import status as ask


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Options):
    """Arguments:

    policy: its name in the configuration, instead of all others.
    target: the target's metastore: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    db: the database, by its name on the target.
    source: the source's metastore, to tell the lag, too.
    cmroot: the source's root, to tell the time of the target's state, and the lag in bytes.
    source_db: the database's name at the source, where it was renamed.
    """

    policy: str | None = field(default=None, kw_only=False)
    target: Where | None = None
    db: str | None = None
    source: Where | None = None
    catalog: str | None = None
    target_catalog: str | None = None
    cmroot: str | None = None
    source_db: str | None = None


@verb(StatusOptions)
def status(options: StatusOptions) -> Status | Lag:
    """Says how far a replicated database is, and how far behind; of a policy, what `lag` says. Reads only.

        replicator.status(target="thrift://b:9083", db="sales", source="thrift://a:9083").lag_events
        replicator.status("west").seconds

    Raises UsageError for neither policy nor database, and for a $cmroot that is not its source's; ObjectNotFound for a
    database that does not exist."""
    if options.policy is not None:
        return lag(options.policy, config=options.settings)
    if options.target is None or options.db is None:
        raise UsageError("status needs a policy, or --target and --db", hint="see `replicator status --help`")
    with ExitStack() as stack:
        return ask(
            stack.enter_context(options.connected(options.target)),
            options.db.lower(),
            source=stack.enter_context(options.connected(options.source)) if options.source else None,
            root=open_existing(options.cmroot) if options.cmroot else None,
            source_db=options.source_db.lower() if options.source_db else None,
        )
