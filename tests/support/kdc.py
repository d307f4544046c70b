"""A real KDC of a realm of its own, in a directory, without root's rights: MIT's krb5kdc."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

REALM = "EXAMPLE.COM"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class Kdc:
    """Runs until `stop`. `environment`: what clients need to find it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n kdc_timeout = 10s\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n"
            f"  acl_file = {directory}/acl\n  max_renewable_life = 7d\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self.environment = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(directory / "kdc.conf")}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.directory / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [shutil.which("krb5kdc", path=_PATH) or "krb5kdc", "-n", "-r", REALM],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline and self._process.poll() is None, "the KDC did not start"
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def keytab(self, principal: str, *, life: str = "1d") -> Path:
        """Makes the principal, with a random key. life: of its tickets."""
        place = self.directory / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-q", f'addprinc -maxlife "{life}" -maxrenewlife 7d -randkey {principal}')
        self._run("kadmin.local", "-q", f"ktadd -k {place} {principal}")
        assert place.exists()
        return place

    def tickets(self, keytab: Path, principal: str, *options: str) -> Path:
        """A ticket cache, as kinit makes it."""
        place = self.directory / f"{principal.replace('/', '-')}.cache"
        self._run("kinit", "-k", "-t", str(keytab), "-c", str(place), *options, principal)
        return place

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, env={**os.environ, **self.environment, "PATH": _PATH}, check=True, capture_output=True, timeout=60
        )

    def java_options(self) -> str:
        return f"-Djava.security.krb5.conf={self.config}"


def with_java_options(env: Mapping[str, str], options: str) -> dict[str, str]:
    return {**env, "JAVA_TOOL_OPTIONS": f"{env.get('JAVA_TOOL_OPTIONS', '')} {options}".strip()}
