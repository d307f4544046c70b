"""The metastore as clients' own connections reach it, each as its client."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.errors import IdentityRefused
from replicator.gateways import identity
from replicator.gateways.entrance.channel import Channel
from replicator.gateways.messages import parse_header
from replicator.gateways.upstream import ServerEnd, dial


@dataclass(frozen=True)
class Asked:
    """needs_user: no call of a client of whom nothing is known. knows_users: the gateway answers what clients say of
    themselves. names_users: it tells the metastore, which believes it (set_ugi)."""

    metastore: MetastoreConfig
    needs_user: bool = False
    knows_users: bool = False
    names_users: bool = False

    def open(self, user: str | None, timeout: float) -> ServerEnd:
        """A connection that is `user`'s. Raises OSError, UpstreamLost, MetastoreError; never one of somebody else's."""
        end = ServerEnd(Channel(dial(self.metastore.addresses)), timeout)
        if user is not None and self.names_users:
            try:
                _become(end, user)
            except BaseException:
                end.close()
                raise
        return end


def _become(end: ServerEnd, user: str) -> None:
    message = identity.set_ugi(user)
    header = parse_header(message)
    assert header is not None
    if not end.ask(header, message).succeeded:
        raise IdentityRefused(f"it does not take {user} as the connection's user")
