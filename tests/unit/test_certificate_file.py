"""Certificates as files, and the audit's filters: of a root on the local disk, without a search."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import replicator
from cmroot.errors import Exists
from cmroot.root import create_or_open
from replicator.core.audit import AuditLog, Refusal, Removal, read_audit
from replicator.errors import ObjectNotFound, UsageError
from replicator.lifecycle.purge.certificate_file import Certificate, as_page, as_text, write_certificate

FORGED = "t<script>alert(1)</script>\x1b[2K\nOutcome\n  certified"


def certificate(**more: object) -> Certificate:
    made = Certificate("remaining", "gdpr.requests:customer", 1, ["run-1"], "2026-11-24T00:00:00+00:00", 7)
    made.searched = ["sales.orders"]
    left = {"what": "backup", "object": FORGED, "path": "/w/x", "bytes": 2048, "why": "old", "until": "purge retain"}
    made.holding = [{**left, "where": ""}]
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_names_in_a_certificate_forge_nothing() -> None:
    page, text = as_page(certificate()), as_text(certificate())
    assert "<script>" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert text.splitlines().count("Outcome") == 1 and "\x1b" not in text
    for written in (page, text):
        assert "remaining: copies remain" in written and "2.0 KiB" in written and "sales.orders" in written


def test_a_file_is_written_whole_and_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    places = [tmp_path / f"made.{suffix}" for suffix in ("json", "txt", "html", "certificate")]
    for place in places:
        write_certificate(certificate(), str(place), overwrite=False)
        before = place.read_bytes()
        with pytest.raises(Exists, match="exists"):
            write_certificate(certificate(status="certified"), str(place), overwrite=False)
        assert place.read_bytes() == before
        write_certificate(certificate(status="certified"), str(place), overwrite=True)
        assert place.read_bytes() != before
    assert json.loads(places[3].read_bytes())["status"] == "certified"
    assert sorted(tmp_path.iterdir()) == sorted(places), "nothing else is left"


def test_the_audit_has_certificates_and_filters(tmp_path: Path) -> None:
    root = create_or_open(str(tmp_path / "cm")).place
    with pytest.raises(ObjectNotFound, match="no certificate"):
        replicator.purge_certificate(cmroot=root)
    times = iter([1_800_000_000.0 + number for number in range(100)])
    alice = AuditLog(root, "purge", "a", "alice@one", lambda: next(times))
    bob = AuditLog(root, "purge", "b", "bob@two", lambda: next(times))
    first, second = certificate(), certificate(status="certified", runs=["run-2"])
    for log, each in ((alice, first), (bob, second)):
        log.changed("", f"{each.status}: 100% sure", what="certificate", detail=asdict(each))
    removal = Removal(path="/w/t/f", what="file", object="s.t", partition="", reason="too old", files=1, bytes=1)
    bob.refused([Refusal(removal, "a Legal Hold")])
    assert replicator.purge_certificate(cmroot=root) == second
    out = tmp_path / "certificate.json"
    assert replicator.purge_certificate(cmroot=root, run="run-1", out=str(out)) == first
    assert json.loads(out.read_bytes()) == asdict(first)
    with pytest.raises(ObjectNotFound, match="run-3"):
        replicator.purge_certificate(cmroot=root, run="run-3")

    def found(**wanted: str) -> list[str]:
        return [row.run + row.outcome for row in replicator.audit_ls(cmroot=root, **wanted).found]

    everything = ["adone", "bdone", "brefused"]
    assert found() == everything == found(since="2027-01-15")
    assert found(who="alice") == found(who="alice@one") == ["adone"] and found(who="ali") == found(who="bob@on") == []
    assert (
        found(reason="legal hold") == ["brefused"] == found(reason="TOO OLD") and found(reason="100%") == everything[:2]
    )
    moments = [row.time for row in read_audit(root)]
    assert found(until=moments[1]) == ["adone"] and found(since=moments[1]) == everything[1:]
    assert found(since=moments[1], until=moments[2]) == ["bdone"]
    assert found(who="bob", outcome="refused", reason="hold", job="purge") == ["brefused"]
    assert found(since="-36500d") == everything and found(until="-36500d") == []
    for option in ("since", "until"):
        with pytest.raises(UsageError, match=f"--{option}'?: 'soon' is not a time"):
            replicator.audit_ls(cmroot=root, **{option: "soon"})
