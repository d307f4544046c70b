"""Kerberos of HDFS: proof of identity over HTTP (SPNEGO, RFC 4559), and what its errors mean. Tickets are those of
Kerberos' own settings: KRB5CCNAME, or the keytab KRB5_CLIENT_KTNAME, which the client of HDFS takes, too."""

from __future__ import annotations

import base64
import errno
import http.client
import re
import urllib.parse
import urllib.request
from typing import cast

try:
    import gssapi
except ImportError:  # the extra is not installed, or the system has no Kerberos
    gssapi = None

from cmroot.errors import Error, StoreIdentityRefused, StoreNotAuthenticated
from cmroot.store.hdfs.configuration import hadoop_settings

_SPNEGO = "1.3.6.1.5.5.2"
_TAKE = "run kinit (again), or name a keytab in KRB5_CLIENT_KTNAME; executors need tickets, too (docs/hdfs.md)"
_CAUSES: tuple[tuple[tuple[str, ...], type[Error], str], ...] = (
    (("clock skew",), StoreNotAuthenticated, "set both clocks by NTP: Kerberos allows 5 minutes"),
    (("cannot contact any kdc", "cannot find kdc", "resolve network address for kdc"), StoreNotAuthenticated,
     "check the realm's KDC in krb5.conf (KRB5_CONFIG), and that it runs"),
    (("expired", "no kerberos credentials", "no credentials cache", "credentials cache file", "no credentials were",
      "spnego cannot find mechanisms"), StoreNotAuthenticated, _TAKE),
    (("not found in kerberos database",), StoreIdentityRefused,
     "klist shows whose tickets these are: their realm must be the cluster's, or trusted by it, and krb5.conf name the"
     " realm of the NameNode's host ([domain_realm])"),
)  # fmt: skip

_OF_CLIENT = re.compile(r'GSSAPIError\(.*?, "(.*)"\)', re.DOTALL)
_LAST = re.compile(r".*(?:may provide more information|inaccessible): +", re.DOTALL)


def kerberized() -> bool:
    """Whether the Hadoop configuration wants Kerberos."""
    return hadoop_settings().get("hadoop.security.authentication", "simple").lower() == "kerberos"


def open_url(url: str, method: str, patience: float) -> http.client.HTTPResponse:
    """The answer of a Hadoop server, with a ticket for it (`HTTP/host`) where the configuration wants Kerberos; who it
    sends us to gets none. May be done again. Raises as urlopen, and StoreNotAuthenticated and StoreIdentityRefused."""
    request = urllib.request.Request(url, method=method)
    if kerberized():
        request.add_unredirected_header("Authorization", f"Negotiate {_token(urllib.parse.urlsplit(url).hostname)}")
    return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=patience))


def kerberos_error(client: Exception) -> Error | None:
    """Ours for an error of the client of HDFS, if it is one of Kerberos."""
    found = _OF_CLIENT.search(str(client))
    return _explained(_LAST.sub("", found[1])) if found else None


def _token(host: str | None) -> str:
    if gssapi is None:
        raise OSError(
            errno.ENOSYS, "WebHDFS with Kerberos needs the gssapi package: pip install 'replicator[kerberos]'"
        )
    try:
        service = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        mechanism = gssapi.OID.from_int_seq(_SPNEGO)
        return base64.b64encode(gssapi.SecurityContext(name=service, mech=mechanism, usage="initiate").step()).decode()
    except gssapi.exceptions.GSSError as error:
        major, _, minor = str(error.gen_message()).partition(", Minor (")
        raise _explained(minor.partition("): ")[2].strip() or major) from error


def _explained(text: str) -> Error:
    for words, kind, hint in _CAUSES:
        if any(word in text.lower() for word in words):
            return kind(f"Kerberos: {text}", hint=hint)
    return StoreIdentityRefused(f"Kerberos: {text}", hint="KRB5_TRACE=/dev/stderr shows each step")
