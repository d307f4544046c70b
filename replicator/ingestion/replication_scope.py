"""Which policies replicate a landing table, and which of them its classification lets: `[ingestion.classes]`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from replicator.captures.events.scope import Patterns
from replicator.core.connections.source_config import ClassConfig, IngestionConfig
from replicator.core.policy import matching_databases
from replicator.errors import Refused
from replicator.ingestion.ingestion_request import Asset


class OutOfScope(Refused):
    """A policy replicates a landing table that the classification of its asset does not let it have."""


def allowed_policies(asset: Asset, ingestion: IngestionConfig) -> tuple[str, ...] | None:
    """Names of policies that may replicate what lands of an asset; None: all."""
    return ingestion.classes.get(asset.classification, ClassConfig()).policies


def beyond_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> dict[str, list[str]]:
    """By policy, those of a database's landing tables that it replicates and may not."""
    allowed, found = allowed_policies(asset, ingestion), {}
    for policy in ingestion.replicating if allowed is not None else ():
        if policy.name not in (allowed or ()) and matching_databases(policy, [db]):
            patterns = Patterns.parse(policy.include, policy.exclude)
            if its := [table for table in tables if patterns.match(table)]:
                found[policy.name] = its
    return found


def check_scope(asset: Asset, db: str, tables: Sequence[str], ingestion: IngestionConfig) -> None:
    """Raises OutOfScope for landing tables that a policy replicates and may not."""
    for policy, its in beyond_scope(asset, db, tables, ingestion).items():
        raise OutOfScope(
            f"policy {policy} would replicate {db}.{its[0]}, and may not: asset {asset.name} is {asset.classification}",
            hint=f"leave {db} out of [policies.{policy}], or name the policy in "
            f"[ingestion.classes.{asset.classification}] policies",
        )
