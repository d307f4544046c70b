"""`asset create`, `ls`, `show` and `approve`: who may bring which data in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replicator.commands.base import Options, verb
from replicator.errors import ObjectNotFound, Refused
from replicator.ingestion.ingestion_request import Asset, Classification
from replicator.ingestion.ingestion_shown import AssetShown, AssetsShown
from replicator.ingestion.intake import Requester, check_asset, opened_store, prepare_place, this_user
from replicator.ingestion.job_store import IngestionStore


@dataclass(frozen=True, kw_only=True)
class AsRequester(Options):
    """by: who asks, as whoever let it in knows it; empty: the user of this process, with its groups. groups: that who
    asks is in."""

    by: str = ""
    groups: Sequence[str] = ()

    @property
    def asks(self) -> Requester:
        return Requester(self.by, tuple(self.groups)) if self.by else this_user()


@dataclass(frozen=True, kw_only=True)
class AssetCreateOptions(AsRequester):
    """Arguments:

    name: the asset's: lower-case letters, digits, underscores; its landing databases begin with it.
    owner: the user or group that answers for it.
    producers, consumers: users and groups that may request landings, and that may read what was landed.
    sources: names of [ingestion.sources].
    classification: "public", "internal", "confidential" or "personal".
    erasure_ids: "db.table:column" of the ids of erased people; erasure_column: the column of landed tables that has
      such an id. A personal asset has both, or an exemption.
    exemption: why it has none.
    retention: for how long versions of its landing tables are kept, a duration.
    note: for people.
    overwrite: change an asset of this name; it has to be approved again.
    """

    name: str = field(kw_only=False)
    owner: str
    producers: str | Sequence[str] = ()
    consumers: str | Sequence[str] = ()
    sources: str | Sequence[str] = ()
    classification: Classification = "internal"
    erasure_ids: str | None = None
    erasure_column: str | None = None
    exemption: str = ""
    retention: str | None = None
    note: str = ""
    overwrite: bool = False

    @property
    def asset(self) -> Asset:
        return Asset(
            name=self.name,
            owner=self.owner,
            producers=_each(self.producers),
            consumers=_each(self.consumers),
            sources=_each(self.sources),
            classification=self.classification,
            erasure_ids=self.erasure_ids,
            erasure_column=self.erasure_column,
            exemption=self.exemption,
            retention=self.retention,
            note=self.note,
            created_by=self.asks.user,
        )


@verb(AssetCreateOptions)
def asset_create(options: AssetCreateOptions) -> AssetShown:
    """Creates an asset, or changes one. Requests for it are made once somebody else has approved it. May run twice.

        replicator.asset_create("crm", owner="olga", producers=["crm_producer"], sources=["crm"])

    Raises UsageError for what cannot be, such as a personal asset without a way to erase people; Refused for another
    asset of this name without overwrite, or that is somebody else's."""
    asset = options.asset
    check_asset(asset, options.settings.ingestion)
    with opened_store(options.settings) as store:
        before = _known(store, asset.name)
        if before is not None and not options.asks.is_one_of((before.owner, before.created_by)):
            raise Refused(f"asset {asset.name} is {before.owner}'s", hint="its owner changes it, or take another name")
        stored = store.put_asset(asset, overwrite=options.overwrite)
    status = "created" if before is None else "unchanged" if stored == before else "changed"
    return AssetShown.of(status, stored, options.settings.ingestion)


@dataclass(frozen=True, kw_only=True)
class AssetLsOptions(Options):
    """No arguments of its own."""


@verb(AssetLsOptions)
def asset_ls(options: AssetLsOptions) -> AssetsShown:
    """Lists assets, also those that nobody has approved. Changes nothing.

        replicator.asset_ls().to_arrow()

    Raises StoreUnreachable where the store does not answer."""
    with opened_store(options.settings) as store:
        return AssetsShown("shown", store.assets())


@dataclass(frozen=True, kw_only=True)
class AssetShowOptions(Options):
    """Arguments:

    name: the asset's.
    """

    name: str = field(kw_only=False)


@verb(AssetShowOptions)
def asset_show(options: AssetShowOptions) -> AssetShown:
    """Shows an asset. Changes nothing.

        replicator.asset_show("crm").asset.owner

    Raises ObjectNotFound when there is none, with names like it."""
    with opened_store(options.settings) as store:
        return AssetShown.of("shown", store.asset(options.name), options.settings.ingestion)


@dataclass(frozen=True, kw_only=True)
class AssetApproveOptions(AsRequester):
    """Arguments:

    name: the asset's.
    digest: of the definition that is meant, as `asset_show` has it; empty: whichever is there.
    """

    name: str = field(kw_only=False)
    digest: str = ""


@verb(AssetApproveOptions)
def asset_approve(options: AssetApproveOptions) -> AssetShown:
    """Approves an asset: from now on its owner and its producers may make requests. Makes its directory, where that is
    for this user to make; the report's `not_made` names the rest. May run twice.

        replicator.asset_approve("crm")

    Raises ObjectNotFound when there is none; Refused for who has made or changed it, and where it is
    another definition than that of `digest`."""
    with opened_store(options.settings) as store:
        approved = store.approve_asset(options.name, options.asks.user, options.digest)
    shown = AssetShown.of("approved", approved, options.settings.ingestion)
    shown.not_made = prepare_place(approved, options.settings.ingestion)
    return shown


def _each(given: str | Sequence[str]) -> tuple[str, ...]:
    """Each once, in their order."""
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given))


def _known(store: IngestionStore, name: str) -> Asset | None:
    try:
        return store.asset(name)
    except ObjectNotFound:
        return None
