"""The filesystem of a store in this process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cmroot.errors import UnknownPlace
from cmroot.store.drivers.endpoints import driver_options
from cmroot.store.spelling import scheme

AZURE = frozenset({"abfs", "abfss", "az"})
GCS = frozenset({"gs", "gcs"})

_EXTRAS = {"s3": "s3"} | dict.fromkeys(GCS, "gcs") | dict.fromkeys(AZURE, "azure")
"""The extra of this distribution that brings the driver of a scheme."""


@lru_cache(maxsize=32)
def filesystem_of(process: int, store: str, endpoints: str) -> Any:
    """The filesystem of a store in this process; none survives a fork, which fsspec's event loop does not either.
    endpoints: what the environment says of single buckets.

    One per store and process: opening an S3 client takes 0.2 s. Neither listings nor fsspec's own instances are
    cached: both answer from the past.
    """
    import fsspec

    kind = scheme(store)
    try:
        if kind in AZURE:
            fsspec.get_filesystem_class(kind)  # says what is missing
            from cmroot.store.drivers.azure_blobs import AzureBlobs

            return AzureBlobs.opened(store)
        options = driver_options(store, endpoints) if kind == "s3" else {}
        return fsspec.core.url_to_fs(store, use_listings_cache=False, skip_instance_cache=True, **options)[0]
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(kind)
        hint = f"pip install 'replicator[{extra}]', or mend the URL" if extra else "install its driver, or mend the URL"
        raise UnknownPlace(f"{store}: {error}", hint=hint) from error
