"""Errors of replicator, below `cmroot.errors.Error`. Exit codes: docs/cli.md."""

from __future__ import annotations

from cmroot.errors import (
    ChecksumMismatch,
    Error,
    FormatError,
    KeepError,
    LeaseHeld,
    NoSpace,
    NotWritable,
    StorageUnreachable,
)

__all__ = [
    "BootstrapNeeded",
    "ChecksumMismatch",
    "CommitOutcomeUnknown",
    "ConfigError",
    "Error",
    "Fenced",
    "FilesMissing",
    "FormatError",
    "IdentityRefused",
    "JavaError",
    "KeepError",
    "LeaseHeld",
    "MetastoreError",
    "MetastoreStartError",
    "MetastoreUnreachable",
    "MomentLost",
    "NoSpace",
    "NotAMetastore",
    "NotAuthenticated",
    "NotReached",
    "NotWritable",
    "NotificationLogOff",
    "NotificationRefused",
    "ObjectExists",
    "ObjectNotFound",
    "Refused",
    "SourceLocked",
    "SourceMissing",
    "SourceRefused",
    "SourceUnreachable",
    "SparkMissing",
    "StorageUnreachable",
    "StoreUnreachable",
    "TypeRefused",
    "UsageError",
    "sqlite_error",
]


class UsageError(Error):
    """The command line or a value on it is wrong; nothing was done."""

    exit_code = 2


class ConfigError(Error):
    """The configuration file is wrong; the message names the key."""

    exit_code = 2


class MetastoreError(Error):
    """The metastore answered with an error."""


class MetastoreUnreachable(MetastoreError):
    """The metastore does not answer, or the connection was lost during a call that changes nothing."""

    exit_code = 75
    transient = True


class NotAMetastore(MetastoreError):
    """The server at the address is not a metastore, or speaks another transport than the configured one."""

    exit_code = 2


class IdentityRefused(MetastoreError):
    """The metastore refuses the client's identity (principal, user, password, token, certificate), or its own identity
    cannot be verified."""

    exit_code = 2


class NotAuthenticated(MetastoreError):
    """The client cannot prove its identity at present: its tickets have run out, the clocks differ, or no KDC
    answers."""

    exit_code = 75
    transient = True


class CommitOutcomeUnknown(MetastoreError):
    """The connection to the metastore died during a change, whose outcome is unknown. Run the same command again."""

    exit_code = 75
    transient = True


class ObjectNotFound(MetastoreError):
    """A database, table, partition or function does not exist."""


class ObjectExists(MetastoreError):
    """A database, table, partition or function exists already."""


class NotificationLogOff(MetastoreError):
    """The metastore writes no notification log: DbNotificationListener is not configured."""


class NotificationRefused(NotificationLogOff):
    """The metastore does not let this user read its notification log."""

    exit_code = 2


class JavaError(Error):
    """No usable Java runtime."""


class SparkMissing(Error):
    """The work needs Spark, and PySpark is not installed."""


class MetastoreStartError(Error):
    """The embedded metastore did not start; the message contains the last lines of its log."""


class BootstrapNeeded(Error):
    """Needed events no longer exist: an incremental dump or load cannot be exact, a bootstrap is needed."""

    exit_code = 5


class MomentLost(BootstrapNeeded):
    """The events around the requested recovery point were lost: only earlier and later states can be restored."""


class Refused(Error):
    """A safety rule refused the operation."""

    exit_code = 6


class DatabaseMoved(Refused):
    """The metastore created a database at another location than requested."""


class NotReached(Error):
    """The awaited state was not reached within the time-out. Nothing was changed; wait again."""

    exit_code = 75
    transient = True


class Fenced(Error):
    """Another controller has taken over an ingestion job, or it was cancelled: this one's late write was refused."""

    exit_code = 75
    transient = True


class StoreUnreachable(Error):
    """The housekeeping store does not answer, or is busy. Committed work is kept, the next run completes the rest."""

    exit_code = 75
    transient = True


class SourceUnreachable(Error):
    """A source database does not answer, or the connection broke. Nothing of the attempt is kept."""

    exit_code = 75
    transient = True


class SourceLocked(Error):
    """A table of a source is locked by another session, or the source chose this reader to end a deadlock."""

    exit_code = 75
    transient = True


class SourceRefused(Error):
    """A source refuses a request: credentials, rights, or a column that cannot be used in this way."""


class SourceMissing(SourceRefused):
    """A source has no such database, table or column."""


class TypeRefused(SourceRefused):
    """A column's type, or a value in it, cannot be stored in the warehouse; the message names the column."""


class FilesMissing(Error):
    """Files that a dump names are neither at the source nor in `$cmroot` with the recorded bytes."""


# ---- SQLite ----------------------------------------------------------------------------------------------------------


_NO_ROOM = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_FSYNC"}


def sqlite_error(path: object, error: Exception) -> Error:
    """Translates an error of SQLite about a manifest: FormatError, with the advice to delete it, only for a damaged
    one."""
    code, message = getattr(error, "sqlite_errorname", ""), f"{path}: {error}"
    if code in _NO_ROOM:  # SQLite reports quotas and file size limits as input/output errors
        hint = "free space or raise the quota; if there is space, check the disk for errors; then run again"
        return NoSpace(message, hint=hint)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return FormatError(message, hint="delete it: it is rebuilt from the log")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return NotWritable(message, hint="check the permissions of the file and its directory")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StorageUnreachable(message, hint="another process has it open: try again when that has ended")
    if code.startswith("SQLITE_IOERR"):
        return StorageUnreachable(message, hint="check its disk or mount, then run the same command again")
    return Error(message, hint="the next capture completes it; if it fails, too, report this as a bug")
