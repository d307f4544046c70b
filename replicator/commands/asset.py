"""`asset create`, `ls`, `show` and `approve`: the assets of ingestion, which define who may land which data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from replicator.commands.base import Options, verb
from replicator.commands.options import Note
from replicator.core.option import arg, opt, python_only
from replicator.core.source_config import MatchRule
from replicator.errors import ObjectNotFound, Refused
from replicator.ingestion.ingestion_request import Asset, Classification, as_approved
from replicator.ingestion.ingestion_shown import AssetShown, AssetsShown, LandingMark
from replicator.ingestion.intake import Requester, check_asset, existing_store, opened_store, prepare_place, this_user
from replicator.ingestion.job_store import IngestionStore


@dataclass(frozen=True, kw_only=True)
class AsRequester(Options):
    """The requester of an action: a field of every command that the service calls for a user."""

    by: Annotated[
        str,
        python_only(
            "The requester, as authenticated by the service; empty: the user of this process, with its groups."
        ),
    ] = ""
    groups: Annotated[Sequence[str], python_only("The requester's groups.")] = ()

    @property
    def asks(self) -> Requester:
        return Requester(self.by, tuple(self.groups)) if self.by else this_user()


@dataclass(frozen=True, kw_only=True)
class AssetCreateOptions(AsRequester):
    name: Annotated[
        str, arg("The asset's name: lower-case letters, digits, underscores; its landing databases begin with it.")
    ] = field(kw_only=False)
    owner: Annotated[
        str, opt("User or group that is responsible for it; default: the user who creates it.", metavar="NAME")
    ] = ""
    producers: Annotated[
        str | Sequence[str], opt("User or group that may request landings; repeatable.", "--producer", metavar="NAME")
    ] = ()
    consumers: Annotated[
        str | Sequence[str],
        opt("User or group that may read what was landed; repeatable.", "--consumer", metavar="NAME"),
    ] = ()
    sources: Annotated[
        str | Sequence[str], opt("Source of [ingestion.sources]; repeatable.", "--source", metavar="NAME")
    ] = ()
    classification: Annotated[
        Classification, opt("Class of its data. personal: erased data subjects must not reappear, see --erasure-ids.")
    ] = "internal"
    erasure_ids: Annotated[
        str | None, opt("Table and column of the ids of erased data subjects.", metavar="DB.TABLE:COLUMN")
    ] = None
    erasure_column: Annotated[str | None, opt("Column of landed tables that contains such an id.", metavar="NAME")] = (
        None
    )
    erasure_match: Annotated[
        MatchRule | Sequence[MatchRule],
        opt("Rule by which both are equal in spite of their spelling, as of a purge; exact: none; repeatable."),
    ] = ()
    exemption: Annotated[str, opt("Reason why a personal asset has none.", metavar="TEXT")] = ""
    retention: Annotated[
        str | None, opt("Time for which versions of its landing tables are kept.", metavar="DURATION")
    ] = None
    note: Note = ""
    overwrite: Annotated[bool, opt("Change an asset of this name; it must be approved again.")] = False

    @property
    def asset(self) -> Asset:
        return Asset(
            name=self.name,
            owner=self.owner or self.asks.user,
            producers=_each(self.producers),
            consumers=_each(self.consumers),
            sources=_each(self.sources),
            classification=self.classification,
            erasure_ids=self.erasure_ids,
            erasure_column=self.erasure_column,
            erasure_match=_each(self.erasure_match) or None,
            exemption=self.exemption,
            retention=self.retention,
            note=self.note,
            created_by=self.asks.user,
        )


@verb(AssetCreateOptions)
def asset_create(options: AssetCreateOptions) -> AssetShown:
    """Creates an asset, or changes one. It accepts requests once another user has approved it. May run twice.

        replicator.asset_create("crm", owner="olga", producers=["crm_producer"], sources=["crm"])

    Raises UsageError for an invalid definition, such as a personal asset without a way to erase data subjects; Refused
    if another asset has this name and `overwrite` is not given, or if it belongs to another owner."""
    asset = options.asset
    check_asset(asset, options.settings.ingestion)
    with opened_store(options.settings, new=True) as store:
        before = _known(store, asset.name)
        if before is not None and not options.asks.is_one_of((before.owner, before.created_by)):
            raise Refused(
                f"asset {asset.name} belongs to {before.owner}",
                hint="only its owner can change it; or use another name",
            )
        stored = store.put_asset(asset, overwrite=options.overwrite)
    status = "created" if before is None else "unchanged" if stored == before else "changed"
    return AssetShown.of(status, stored, options.settings.ingestion)


@dataclass(frozen=True, kw_only=True)
class AssetLsOptions(Options):
    """No options of its own."""


@verb(AssetLsOptions)
def asset_ls(options: AssetLsOptions) -> AssetsShown:
    """Lists assets, including those not yet approved; none without a store. Changes nothing.

        replicator.asset_ls().to_arrow()

    Raises StoreUnreachable if the store does not answer."""
    ingestion = options.settings.ingestion
    with existing_store(options.settings) as store:
        found = [as_approved(each, ingestion) for each in store.assets()] if store else []
    return AssetsShown("shown", found, single_user=ingestion.single_user)


@dataclass(frozen=True, kw_only=True)
class AssetShowOptions(Options):
    name: Annotated[str, arg("The asset's name.")] = field(kw_only=False)


@verb(AssetShowOptions)
def asset_show(options: AssetShowOptions) -> AssetShown:
    """Shows an asset, with the watermarks of its landing tables. Changes nothing.

        replicator.asset_show("crm").asset.owner

    Raises ObjectNotFound if it does not exist; the hint suggests similar names."""
    with opened_store(options.settings) as store:
        shown = AssetShown.of("shown", store.asset(options.name), options.settings.ingestion)
        found = (LandingMark.of(row, facts) for row, facts in store.published_tables(options.name))
        shown.marks = [each for each in found if each is not None]
        return shown


@dataclass(frozen=True, kw_only=True)
class AssetApproveOptions(AsRequester):
    name: Annotated[str, arg("The asset's name.")] = field(kw_only=False)
    digest: Annotated[
        str, opt("Approve only the definition that `asset show` printed with this digest.", metavar="HEX")
    ] = ""


@verb(AssetApproveOptions)
def asset_approve(options: AssetApproveOptions) -> AssetShown:
    """Approves an asset: from now on its owner and its producers may send requests. Creates its directories as far as
    this user may; the report's `not_made` lists the others. May run twice.

        replicator.asset_approve("crm")

    Raises ObjectNotFound if it does not exist; Refused for the user who created or changed it (except in single-user
    mode), and if its definition is not that of `digest`."""
    with opened_store(options.settings) as store:
        own = options.settings.ingestion.single_user
        approved = store.approve_asset(options.name, options.asks.user, options.digest, own=own)
    shown = AssetShown.of("approved", approved, options.settings.ingestion)
    shown.not_made = prepare_place(approved, options.settings.ingestion)
    return shown


Name = TypeVar("Name", bound=str)


def _each(given: Name | Sequence[Name]) -> tuple[Name, ...]:
    """Each once, in their order."""
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given))


def _known(store: IngestionStore, name: str) -> Asset | None:
    try:
        return store.asset(name)
    except ObjectNotFound:
        return None
