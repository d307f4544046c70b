"""The metastore as clients' own connections reach it, each as its client."""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from replicator.captures.gateways.auth.door import Channel
from replicator.captures.gateways.upstream import ServerEnd
from replicator.core.connections import MetastoreConfig
from replicator.metastore.connecting import Opener
from replicator.metastore.transports.transport import Framed

USERS = 1000  # whose delegation tokens are kept


class Asked:
    """needs_user: no call of a client of whom nothing is known. knows_users: the gateway answers what clients say of
    themselves. acts_for: connections are the users' own, by set_ugi or a delegation token; else the gateway's."""

    def __init__(
        self,
        metastore: MetastoreConfig,
        timeout: float,
        *,
        needs_user: bool = False,
        knows_users: bool = False,
        acts_for: bool = True,
    ) -> None:
        self.needs_user, self.knows_users = needs_user, knows_users
        self._metastore, self._timeout, self._acts_for = metastore, timeout, acts_for
        self._openers: OrderedDict[str | None, Opener] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, user: str | None) -> ServerEnd:
        """A connection that is `user`'s; never somebody else's in its place. Raises MetastoreError."""
        transport = self._opener(user).open(lambda: None).transport
        layer = transport.layer if isinstance(transport, Framed) else None
        return ServerEnd(Channel(transport.socket, layer), self._timeout)

    def _opener(self, user: str | None) -> Opener:
        with self._lock:
            if user not in self._openers:
                config = msgspec.structs.replace(self._metastore, user=user) if self._acts_for else self._metastore
                self._openers[user] = Opener(config, self._timeout)
            self._openers.move_to_end(user)
            while len(self._openers) > USERS:
                self._openers.popitem(last=False)
            return self._openers[user]
