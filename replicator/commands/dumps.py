"""`dumps verify`, `ls`, `expire`, `export` and `import`: work on finished dumps, without any metastore."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from cmroot.store.local import FLOW
from replicator.captures.dumps.archive import Archived, export_dump, import_dump
from replicator.captures.dumps.data import (
    PERIODS,
    DumpsExpired,
    DumpsListed,
    DumpVerified,
    Keep,
    expire_dumps,
    list_dumps,
    verify_dump,
)
from replicator.captures.dumps.layout import DumpReader
from replicator.commands.base import Copying, Options, verb
from replicator.commands.options import DryRun, KeyFile, OverwriteFile
from replicator.core.option import Natural, arg, opt
from replicator.errors import UsageError

FinishedDump = Annotated[str, arg("The finished dump's directory.", "DUMP")]


@dataclass(frozen=True, kw_only=True)
class DumpsVerifyOptions(Options):
    dump: FinishedDump = field(kw_only=False)
    key_file: KeyFile = None


@verb(DumpsVerifyOptions)
def dumps_verify(options: DumpsVerifyOptions) -> DumpVerified:
    """Reads all of a dump, with every byte of its data, also in the earlier dumps that it refers to. Changes nothing.

        assert not replicator.dumps_verify("/backup/1").damaged

    Raises FormatError for a dump that is unfinished, or whose description, records or file entries are damaged; Refused
    for one that is not signed with a key."""
    with options.runtime() as runtime:
        return verify_dump(DumpReader(options.dump, options.keys(options.key_file)), runtime)


@dataclass(frozen=True, kw_only=True)
class DumpsExportOptions(Copying):
    dump: FinishedDump = field(kw_only=False)
    archive: Annotated[str, arg("The tar file to write.", "FILE")] = field(kw_only=False)
    overwrite: OverwriteFile = False
    encrypt: Annotated[
        bool, opt("Encrypt the whole archive, names too, with the first key of the key file (AES-256-GCM).")
    ] = False
    key_file: KeyFile = None


@verb(DumpsExportOptions)
def dumps_export(options: DumpsExportOptions) -> Archived:
    """Writes a dump with data as one tar file, and compares every byte with its checksum. May run twice.

        replicator.dumps_export("/backup/1", "/media/disk/1.tar")

    Raises UsageError for a dump without data, or an existing file; ChecksumMismatch for damaged data; FormatError and
    Refused as `dumps_verify`."""
    keys = options.keys(options.key_file)
    if options.encrypt and keys is None:
        raise UsageError("--encrypt needs a key file", hint="give --key-file, or key_file of [dumps]")
    reader, encrypt = DumpReader(options.dump, keys), keys if options.encrypt else None
    with FLOW.limited(options.rate):
        return export_dump(reader, options.archive, options.teller, overwrite=options.overwrite, encrypt=encrypt)


@dataclass(frozen=True, kw_only=True)
class DumpsImportOptions(Copying):
    archive: Annotated[str, arg("The tar file that `dumps export` wrote.", "FILE")] = field(kw_only=False)
    out: Annotated[str, opt("The dump's directory, new or empty.", metavar="PLACE")]
    key_file: KeyFile = None


@verb(DumpsImportOptions)
def dumps_import(options: DumpsImportOptions) -> Archived:
    """Writes the dump of a tar file into a directory. Each byte is compared with its checksum before a file gets its
    name. May run again after a crash: bytes that are there are not written again.

        replicator.dumps_import("/media/disk/1.tar", out="s3://backup/1")

    Raises FormatError for anything that is not such a file, or is damaged, naming the member; Refused for a dump that
    is not signed with a key; UsageError for a directory that is not empty."""
    with FLOW.limited(options.rate):
        return import_dump(options.archive, options.out, options.keys(options.key_file), options.teller)


DumpsPlace = Annotated[str, arg("The directory that has the dumps' directories.", "PLACE")]


@dataclass(frozen=True, kw_only=True)
class DumpsLsOptions(Options):
    place: DumpsPlace = field(kw_only=False)


@verb(DumpsLsOptions)
def dumps_ls(options: DumpsLsOptions) -> DumpsListed:
    """Lists the dumps of a directory, with the dumps that each needs. Changes nothing.

        replicator.dumps_ls("s3://backup/sales").to_arrow()

    Raises UsageError for a directory without dumps; FormatError for a damaged dump."""
    return list_dumps(options.place)


@dataclass(frozen=True, kw_only=True)
class DumpsExpireOptions(Options):
    place: DumpsPlace = field(kw_only=False)
    keep_last: Annotated[Natural, opt("Keep the newest N dumps.", metavar="N")] = 0
    keep_daily: Annotated[
        Natural, opt("Keep the newest dump of each of the last N days that have any.", metavar="N")
    ] = 0
    keep_weekly: Annotated[Natural, opt("The same, by ISO weeks.", metavar="N")] = 0
    keep_monthly: Annotated[Natural, opt("The same, by months.", metavar="N")] = 0
    keep_yearly: Annotated[Natural, opt("The same, by years.", metavar="N")] = 0
    keep_within: Annotated[timedelta | None, opt("Keep all dumps that are younger, such as 36h or 14d.")] = None
    dry_run: DryRun = False

    @property
    def keep(self) -> Keep:
        """Raises UsageError if nothing is to be kept."""
        periods = {name: count for name in PERIODS if (count := getattr(self, f"keep_{name}"))}
        if not periods and self.keep_within is None:
            raise UsageError("no dump is to be kept", hint="give at least one of the --keep options")
        return Keep(periods, self.keep_within)


@verb(DumpsExpireOptions)
def dumps_expire(options: DumpsExpireOptions) -> DumpsExpired:
    """Removes dumps with data that are not kept. A kept dump keeps the dumps that it needs: no chain is broken. May run
    again after a crash.

        replicator.dumps_expire("s3://backup/sales", keep_daily=7, keep_weekly=4, dry_run=True)

    Raises UsageError if nothing is to be kept; FormatError, before any removal, for a damaged dump."""
    return expire_dumps(options.place, options.keep, time.time, dry_run=options.dry_run)
