"""Findings about the gateway of the configuration: what it asks of clients, and which risks it is allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.captures.gateways.security import risks
from replicator.core.connections.gateway_config import GatewayConfig
from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.policies.checks.finding import Finding

EVERYWHERE = "0.0.0.0"  # where a gateway listens is an option of its command


def of_gateway(config: GatewayConfig, metastore: MetastoreConfig) -> Iterator[Finding]:
    """Nothing where none is configured."""
    if config == GatewayConfig():
        return
    found = list(risks(config, metastore, EVERYWHERE))
    for risk, what, hint in found:
        if risk in config.allow:
            yield Finding("gateway", "warning", f"allowed ({risk}): {what}", hint)
        else:
            yield Finding("gateway", "warning", f"it does not start: {what}", f'{hint}; or allow = ["{risk}"]')
    if not found:
        yield Finding("gateway", "ok", f"asks of clients: {config.described() or 'nothing'}")
