"""TLS of a connection: whom it trusts, what it shows, and what a failed handshake says."""

from __future__ import annotations

import socket
import ssl

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.core.connections.secret import read_secret
from replicator.errors import IdentityRefused, NotAMetastore
from replicator.metastore.transports.frames import CLOSED

_OTHER_HOST = 62  # X509_V_ERR_HOSTNAME_MISMATCH
_OTHER_ADDRESS = 64
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF", "PACKET_LENGTH_TOO_LONG")


def secured(connection: socket.socket, config: MetastoreConfig, host: str) -> ssl.SSLSocket:
    """Raises IdentityRefused for certificates, NotAMetastore for a server without TLS, OSError when it dies."""
    context = _context(config)
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLEOFError as error:
        raise ConnectionResetError(CLOSED) from error
    except ssl.SSLError as error:
        raise failure(error) from error


def failure(error: ssl.SSLError) -> Exception:
    """The error that it is for a caller, with a hint."""
    if isinstance(error, ssl.SSLCertVerificationError):
        other = error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS)
        return IdentityRefused(
            f"the server's certificate is refused: {error.verify_message}",
            hint="check the URI's host, or set verify_host = false in [metastores.NAME]"
            if other
            else "set ca in [metastores.NAME] to a PEM file with the certificate that signed the server's",
        )
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return NotAMetastore("no TLS is spoken there", hint="set tls = false in [metastores.NAME]")
    if "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason:
        return IdentityRefused(
            f"the server refuses the TLS handshake: {reason.lower().replace('_', ' ')}",
            hint="it may want a client certificate: set certificate and key in [metastores.NAME]",
        )
    return ConnectionResetError(f"TLS: {reason.lower().replace('_', ' ')}")


def _context(config: MetastoreConfig) -> ssl.SSLContext:
    """Each connection makes a new one: administrators replace certificates while a command runs."""
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except (OSError, ValueError) as error:
        raise IdentityRefused(f"ca {config.ca} cannot be read: {_why(error)}", hint="it is a PEM file") from error
    context.check_hostname = config.verify_host
    if config.certificate is not None:
        reference = config.key_password
        password = "" if reference is None else read_secret(reference, "key_password")  # empty: never asked for
        try:
            context.load_cert_chain(config.certificate, config.key, password)
        except (OSError, ValueError) as error:
            raise IdentityRefused(
                f"certificate {config.certificate} with key {config.key} cannot be read: {_why(error)}",
                hint="both are PEM files; key_password is that of an encrypted key",
            ) from error
    return context


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
