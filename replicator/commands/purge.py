"""`purge run` and `certify`: the rows of people erased from tables, and the proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, ClassVar

from cmroot.root import open_existing
from cmroot.store.place import as_written
from replicator.commands.base import Where, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Between
from replicator.commands.removing import Limited, Removing
from replicator.core.policy import same_metastore
from replicator.lifecycle.purge.certificate_file import recorded_certificate, refuse_existing, write_certificate
from replicator.lifecycle.purge.certify import Certificate, Replica, certify
from replicator.lifecycle.purge.options import CertifyOptions, PurgeOptions, read_properties
from replicator.lifecycle.purge.run import Purge, Purged


@dataclass(frozen=True, kw_only=True)
class ErasureOptions(Limited, OfPolicy):
    """metastore: a thrift URI, several separated by commas, or a configured name.
    cmroot: its change-management root.
    ids: "db.table:column", the table of the ids to erase and its column.
    whitelist: the tables considered, in Gobblin's grammar, such as "db.table1|table2,db2"; None: all.
    field_path: where in a table's dataset.descriptor the name of its column of ids stands, such as "privacy.column".
    properties: a file of a Gobblin compliance job, for what is not given.
    """

    needed: ClassVar = ("metastore", "cmroot")

    zone: ClassVar[str] = "UTC"  # Spark takes times of some formats for those of its Java's zone

    metastore: Where = field(default="", kw_only=False)
    cmroot: str = field(default="", kw_only=False)
    ids: str | None = field(default=None, kw_only=False)
    whitelist: str | None = None
    field_path: str | None = None
    properties: str | os.PathLike[str] | None = None

    def asked(self, attempts: int = 3) -> PurgeOptions:
        """Raises UsageError when no table of ids is given."""
        given = read_properties(self.properties)
        return PurgeOptions.given(self.ids, self.whitelist, self.field_path, given, attempts)


@dataclass(frozen=True, kw_only=True)
class PurgeRunOptions(ErasureOptions, Removing):
    """Arguments:

    attempts: how often a partition is tried that is written to meanwhile.
    """

    attempts: Annotated[int, Between(1, 100)] = 3


@verb(PurgeRunOptions)
def purge_run(options: PurgeRunOptions) -> Purged:
    """Erases the rows of all ids from the white-listed tables that are described. What was before stays as a backup,
    which `purge_undo` brings back and `purge_retain` recycles. The root is made where there is none. Safe to kill
    and to run again: the same request goes on where it was. A dry run only counts rows.

        replicator.purge_run("prod", "/cm", "gdpr.requests:customer", whitelist="sales", field_path="privacy.column")

    Raises UsageError when nobody says which ids; Refused when there are no ids or no tables, or more would be written
    again than may; LeaseHeld while another purge is at work. Tables that are not reached are the report's `gaps`."""
    asked = options.asked(options.attempts)
    make = partial(Purge, options=asked)
    with options.working(make, options.cmroot, options.metastore, dry_run=options.dry_run) as job:
        return job.run(dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class PurgeCertifyOptions(ErasureOptions):
    """Arguments:

    run: the ids and tables of this purge, or of the "latest", in place of `ids`.
    replica_cmroot: roots of replicas that no policy of the configuration names.
    expedite: first recycle the backups, and expire what nobody needs.
    grace: of expediting: touch no backup that is younger: the duration of the longest query.
    allow_gaps: certify though something on the white list was not searched.
    out: write the certificate there, too: as text or a page to a file whose name ends in .txt or .html, else as JSON.
    overwrite: replace the file that is there.
    """

    renamed: ClassVar = {"readers": "grace"}

    run: str | None = None
    replica_cmroot: Sequence[str] = ()
    expedite: bool = False
    grace: timedelta = timedelta(hours=2)
    allow_gaps: bool = False
    out: str | None = None
    overwrite: bool = False


@verb(PurgeCertifyOptions)
def purge_certify(options: PurgeCertifyOptions) -> Certificate:
    """Proves that nothing holds what was erased any more, or lists what does and until when: tables, backups, the root,
    directories, and the replicas of the configuration's policies. The certificate is kept in the audit. Safe to run
    twice; changes nothing else, unless it expedites.

        replicator.purge_certify("prod", "/cm", run="latest", out="certificate.json").holding

    Raises UsageError for an unknown run, or when nobody says which ids; Refused when there are none; Exists, before it
    begins, for a file `out` that may not be replaced."""
    if options.out is not None and not options.overwrite:
        refuse_existing(options.out)
    asked = options.asked() if options.run is None else PurgeOptions("")
    root = open_existing(options.cmroot)
    with ExitStack() as stack:
        metastore = stack.enter_context(options.connected(options.metastore))
        replicas = [
            Replica.of(policy, stack.enter_context(options.connected(policy.target_metastore)))
            for policy in options.settings.policies.values()
            if same_metastore(policy.source, metastore.uri) and str(as_written(policy.cmroot)) == root.place
        ]
        roots = [str(as_written(each)) for each in options.replica_cmroot]
        how = CertifyOptions(roots, options.run, options.expedite, options.allow_gaps, options.grace, options.limits)
        done = certify(metastore, root, asked, how, replicas, stack.enter_context(options.runtime()))
    if options.out is not None:
        write_certificate(done, options.out, overwrite=options.overwrite)
    return done


@dataclass(frozen=True, kw_only=True)
class PurgeCertificateOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root whose audit has it.
    run: that covers this purge; None: the newest.
    out: write it there, too: as text or a page to a file whose name ends in .txt or .html, else as JSON.
    overwrite: replace the file that is there.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    run: str | None = None
    out: str | None = None
    overwrite: bool = False


@verb(PurgeCertificateOptions)
def purge_certificate(options: PurgeCertificateOptions) -> Certificate:
    """Shows a certificate that was made, and writes it to a file. Searches nothing.

        replicator.purge_certificate(cmroot="/cm", out="certificate.html").status

    Raises ObjectNotFound when the audit has none, Exists for a file that is there."""
    found = recorded_certificate(open_existing(options.cmroot).place, options.run)
    if options.out is not None:
        write_certificate(found, options.out, overwrite=options.overwrite)
    return found
