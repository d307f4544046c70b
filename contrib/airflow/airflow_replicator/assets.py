"""Assets: what a policy replicates, as other DAGs wait for it: `replicator://CONNECTION/POLICY`."""

from __future__ import annotations

from urllib.parse import SplitResult

from airflow.sdk import Asset


def replica_asset(policy: str, conn_id: str = "replicator_default") -> Asset:
    """The replica of a policy. One more event each time a sync has ended well."""
    return Asset(uri=f"replicator://{conn_id}/{policy}", name=f"replica of {policy} by {conn_id}", group="replica")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """As it is, if it is one. Raises ValueError."""
    policy = uri.path.strip("/")
    if not uri.netloc or not policy or "/" in policy or uri.query or uri.fragment:
        raise ValueError(f"{uri.geturl()}: not replicator://CONNECTION/POLICY")
    return uri._replace(path=f"/{policy}")
