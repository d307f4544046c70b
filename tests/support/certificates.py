"""Certificates of tests, made by openssl: an authority, a server on loopback, and clients."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Files below a directory: `ca` signs what `issue` makes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.ca = place / "ca.pem"
        _openssl("req", "-x509", "-keyout", f"{place}/ca.key", "-out", f"{self.ca}", "-subj", "/CN=ca", *_NEW)

    def issue(self, name: str, *, password: str | None = None) -> tuple[str, str]:
        """(certificate, key), also for localhost and 127.0.0.1."""
        certificate, key = f"{self.place}/{name}.pem", f"{self.place}/{name}.key"
        signer = ("-CA", f"{self.ca}", "-CAkey", f"{self.place}/ca.key")
        names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        _openssl("req", "-x509", "-keyout", key, "-out", certificate, "-subj", f"/CN={name}", *signer, *names, *_NEW)
        if password is not None:
            _openssl("ec", "-in", key, "-out", f"{key}.enc", "-aes256", "-passout", f"pass:{password}")
            key = f"{key}.enc"
        return certificate, key


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert not done.returncode, done.stderr
