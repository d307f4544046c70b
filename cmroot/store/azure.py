"""Azure's blobs by adlfs, corrected where adlfs would confuse two names, or treat a pending copy as finished.

Imported when a location on Azure is opened: adlfs is the extra `azure`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from adlfs import AzureBlobFileSystem

from cmroot.errors import UnknownPlace

_POLLED = 0.2  # seconds between status requests for a copy in progress


class AzureBlobs(AzureBlobFileSystem):  # type: ignore[misc]
    """The Azure filesystem. Keys are `container/path`, with any characters."""

    @classmethod
    def opened(cls, place: str) -> Self:
        """Opens the filesystem. Raises UnknownPlace when the environment names another account than the place, because
        adlfs would use the environment's."""
        asked = cls._get_kwargs_from_urls(place).get("account_name")
        made = cls(**({"account_name": asked} if asked else {}), use_listings_cache=False, skip_instance_cache=True)
        answers = str(made.service_client.account_name)
        if asked and asked != answers:
            raise UnknownPlace(
                f"{place}: AZURE_STORAGE_CONNECTION_STRING is for account {answers}",
                hint="use this account in the URL, or access both by AZURE_STORAGE_ACCOUNT_KEY, a SAS or an identity",
            )
        return made

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Strips the protocol; adlfs would parse a path as a URL, without tabs, and cut off at the last # or ?."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        head, separator, rest = path.partition("://")
        if not separator or head not in cls.protocol:
            return path.lstrip("/")
        authority, _, key = rest.partition("/")
        container, at, _ = authority.partition("@")
        if not at and authority.endswith(".core.windows.net"):  # abfss://account.dfs.core.windows.net/container/key
            return key.lstrip("/")
        return f"{container}/{key}" if key else container

    def split_path(self, path: str, delimiter: str = "/", return_container: bool = False, **_: Any) -> tuple[Any, ...]:
        """Returns container, key, and no version: `?versionid=` is part of the name."""
        container, _slash, key = self._strip_protocol(path).lstrip("/").partition("/")
        return container, key, None

    async def _find(self, path: str, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        """Finds blobs at and below a name; returns both when the name is a blob and a prefix of others."""
        top = self._strip_protocol(path).strip("/")
        container, key, _ = self.split_path(top)
        below = f"{key}/" if key else ""
        async with self.service_client.get_container_client(container=container) as client:
            blobs = client.list_blobs(include=["metadata"], name_starts_with=below)
            found = {info["name"]: info for info in await self._details([blob async for blob in blobs])}
        if key:
            try:
                own = await self._info(top)
            except FileNotFoundError:
                pass
            else:
                if own["type"] == "file":
                    found[own["name"]] = own
        kept = {name: info for name, info in sorted(found.items()) if withdirs or info["type"] != "directory"}
        return kept if detail else list(kept)

    async def _cp_file(self, path1: str, path2: str, **options: Any) -> None:
        await super()._cp_file(path1, path2, **options)
        container, key, _ = self.split_path(path2)
        async with self.service_client.get_blob_client(container, key) as blob:
            while (said := (await blob.get_blob_properties()).copy).status == "pending":
                await asyncio.sleep(_POLLED)
        if said.status not in (None, "success"):
            raise OSError(f"{path1} was not copied to {path2}: {said.status} {said.status_description or ''}")
