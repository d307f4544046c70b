"""`replicator asset`: who may bring which data in."""

from __future__ import annotations

from typing import Any

import click

from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, columns, emit
from replicator.commands.asset import asset_approve, asset_create, asset_ls, asset_show
from replicator.ingestion.ingestion_shown import AssetShown


@click.group()
def asset() -> None:
    """Manage assets: name, owner, users who may land data and who may read it, sources, classification.

    \b
    Example: replicator asset create crm --owner olga --producer crm_producer --source crm
    """


@asset.command(name="create")
@options_of(asset_create)
@json_option
@pass_session
def create(session: Session, /, as_json: bool, **given: Any) -> int:
    """Create an asset, or change one. Another user approves it with `replicator asset approve`.

    \b
    Example:
      replicator asset create crm --owner olga --producer crm_producer --consumer analysts --source crm
      replicator asset create hr --owner olga --source hr --classification personal \\
        --erasure-ids privacy.erased:person --erasure-column person_id
    """
    return _tell(session.call(asset_create, **given), as_json)


@asset.command(name="ls")
@json_option
@pass_session
def list_assets(session: Session, /, as_json: bool) -> int:
    """List assets, including those not approved yet.

    \b
    Example: replicator asset ls
    """
    shown = session.call(asset_ls)
    rows = [
        (one.name, one.owner, one.classification, ", ".join(one.sources), ", ".join(one.producers), one.approved_by)
        for one in shown.assets
    ]
    head = ("name", "owner", "classification", "sources", "producers", "approved by")
    emit(shown, as_json, columns(head, rows) if rows else ["no assets"])
    return 0


@asset.command(name="show")
@options_of(asset_show)
@json_option
@pass_session
def show(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show an asset.

    \b
    Example: replicator asset show crm
    """
    return _tell(session.call(asset_show, **given), as_json)


@asset.command(name="approve")
@options_of(asset_approve)
@json_option
@pass_session
def approve(session: Session, /, as_json: bool, **given: Any) -> int:
    """Approve an asset: its owner and its producers may make requests from now on. Its author
    cannot approve it.

    \b
    Example: replicator asset approve crm
    """
    return _tell(session.call(asset_approve, **given), as_json)


def _tell(done: AssetShown, as_json: bool) -> int:
    one = done.asset

    def of(name: str, value: str | None) -> str | None:
        """With the class that it is of."""
        by = done.given_by.get(name, "asset")
        return value if value is None or by == "asset" else f"{value} (of {by})"

    lines = [
        (done.status, one.name),
        ("owner", one.owner),
        ("producers", ", ".join(one.producers) or "none"),
        ("consumers", ", ".join(one.consumers) or "none"),
        ("sources", ", ".join(one.sources) or "none"),
        ("classification", one.classification),
        ("erasure ids", of("erasure_ids", one.erasure_ids)),
        ("erasure column", of("erasure_column", one.erasure_column)),
        ("exemption", one.exemption or None),
        ("retention", of("retention", one.retention)),
        ("replicated by", None if done.policies is None else ", ".join(done.policies) or "no policy"),
        ("note", one.note or None),
        ("created by", one.created_by),
        ("approved by", one.approved_by or "not approved yet"),
        ("digest", done.digest),
    ]
    lines += [("not created", each) for each in done.not_made]
    emit(done, as_json, aligned(lines))
    return 0
