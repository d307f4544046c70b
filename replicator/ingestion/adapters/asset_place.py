"""What an asset has at its approval, before any table: its directory below `landing`. What cannot be made is named."""

from __future__ import annotations

import os

from cmroot.store.place import Place, is_local, join, local_path
from replicator.core.connections.source_config import IngestionConfig
from replicator.errors import Error
from replicator.ingestion.ingestion_request import Asset


def prepare_place(asset: Asset, ingestion: IngestionConfig) -> list[str]:
    """Makes the directory, and says what was not made, a text each. May run twice. Only the owner of `landing` makes
    it: another one's directory would be closed to who lands."""
    lacking = []
    if not ingestion.landing:
        return ["the asset's directory: ingestion.landing is not given"]
    directory = join(ingestion.landing, asset.name.lower())
    try:
        place = Place(directory)
        if not place.exists():
            if is_local(ingestion.landing) and os.stat(local_path(ingestion.landing)).st_uid == os.geteuid():
                place.mkdirs()
            else:
                lacking.append(f"{directory}: the first landing makes it")
    except (Error, OSError) as error:
        lacking.append(f"{directory}: {error}; the first landing makes it")
    if asset.consumers:
        who = ", ".join(asset.consumers)
        lacking.append(f"rights of {who} on {directory}: a store has no such names; each landed table gives SELECT")
    return lacking
