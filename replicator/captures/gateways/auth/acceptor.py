"""The server's side of SASL GSSAPI (RFC 4752): whose ticket a client has, and the layer that protects what follows."""

from __future__ import annotations

import os
from collections.abc import Callable

try:
    import gssapi
except ImportError:  # the extra is not installed, or the system has no Kerberos
    gssapi = None

from replicator.captures.gateways.auth.door import NotAdmitted
from replicator.captures.gateways.auth.local_names import LocalNames, NoLocalUser
from replicator.errors import MetastoreError, UsageError
from replicator.metastore.transports.frames import Layer, Quality
from replicator.metastore.transports.kerberos import LARGEST, LEAST_QUALITY, layer, said

GSSAPI = "GSSAPI"


class KerberosProof:
    """Made once for all clients; may be used by any thread. `principal`: the gateway's own, in `keytab`. names:
    whose principals are let in, and who they are here; `least`: the least protection that a client may choose."""

    def __init__(self, principal: str, keytab: str, names: LocalNames, least: str | None = None) -> None:
        """Raises UsageError for a keytab that has no such key."""
        if gssapi is None:
            raise UsageError("Kerberos needs the gssapi package", hint="pip install 'replicator[kerberos]'")
        if not os.access(keytab, os.R_OK):
            raise UsageError(f"keytab {keytab} cannot be read", hint="check its path and rights")
        name, _, realm = principal.rpartition("@")
        if "/" not in name or not realm:
            raise UsageError(f"principal {principal!r} is none of a service", hint="write hive/host.example.com@REALM")
        self._names = names
        self._offered = sum(each for each in Quality if each >= LEAST_QUALITY[least])
        self._principal, self._keytab = principal, keytab
        try:
            self._credentials = self._acquire()
        except MetastoreError as error:
            raise UsageError(error.message, hint=f"klist -k {keytab} shows what the keytab has") from error

    def accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        """See `door.Proof`."""
        try:
            return said(lambda: self._accept(exchange, first), "a client's ticket")
        except MetastoreError as error:
            raise NotAdmitted(error.message) from error

    def _accept(self, exchange: Callable[[bytes], bytes], first: bytes) -> tuple[str, Layer]:
        context = gssapi.SecurityContext(creds=self._credentials, usage="accept")
        token = context.step(first)
        while not context.complete:  # an error of the step is raised here
            token = context.step(exchange(token or b""))
        if token and exchange(token):
            raise NotAdmitted("the SASL negotiation is out of step")
        offer = bytes([self._offered]) + (LARGEST if self._offered > 1 else 0).to_bytes(3, "big")
        chosen = bytes(context.unwrap(exchange(bytes(context.wrap(offer, False).message))).message)
        quality = _quality(chosen, self._offered)
        who = str(context.initiator_name)
        claimed = chosen[4:].decode(errors="replace")
        if claimed not in ("", who):
            raise NotAdmitted(f"{who} may not act as {claimed[:100]!r}")
        return self._short(who), layer(context, quality)

    def _short(self, who: str) -> str:
        try:
            return self._names.user(who)
        except NoLocalUser as error:
            raise NotAdmitted(str(error)) from error

    def _acquire(self) -> object:
        name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        return said(lambda: gssapi.Credentials(name=name, usage="accept", store={"keytab": self._keytab}), self._keytab)


def _quality(chosen: bytes, offered: int) -> Quality:
    try:
        quality = Quality(chosen[0])
    except (IndexError, ValueError):
        raise NotAdmitted("no layer of SASL was chosen") from None
    if len(chosen) < 4 or not quality & offered:
        raise NotAdmitted(f"the protection {quality.name.lower()} is not offered")
    return quality
