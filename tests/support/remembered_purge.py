"""A purge as a root remembers it, without the minutes that one takes."""

from __future__ import annotations

from cmroot.pins import iso
from replicator.core.audit import begin_audit
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.state import PurgeRun, RunDirectory, Unit

PURGE = "1700000000000-0123abcd"
CERTIFICATE = Certificate(
    "gaps", "gdpr.ids:id", 3, [PURGE], iso(1_700_000_000), 7, gaps=[{"table": "a.b", "reason": "no reader"}]
)


def remember_purge(root: str) -> None:
    """A purge of a.b, of which one partition failed, and its certificate."""
    directory = RunDirectory(root, PURGE)
    request = {"ids": "gdpr.ids:id", "whitelist": None, "metastore": "thrift://a:1"}
    started = iso(1_700_000_000)
    directory.write_run(
        PurgeRun(id=PURGE, stamp=PURGE[:13], status="done", started=started, request=request, ids=3, tables=("a.b",))
    )
    unit = Unit(table="a.b", partition="p=1", state="DONE", time=1.7e9, matched=5, bytes_after=10)
    directory.write_units([unit, Unit(table="a.b", partition="p=2", state="FAILED", time=1.7e9, reason="a reason")])
    audit = begin_audit(root, "purge")
    audit.changed("", "3 ids", what="certificate", detail=CERTIFICATE.to_dict())
    audit.changed("a.b", "erased", what="rows", partition="p=1")
