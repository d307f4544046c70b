"""`dumps verify`: work on finished dumps, without any metastore."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from replicator.captures.dumps.data import DumpVerified, verify_dump
from replicator.captures.dumps.layout import DumpReader
from replicator.commands.base import Options, verb
from replicator.commands.options import KeyFile, arg

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
