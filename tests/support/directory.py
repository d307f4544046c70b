"""A real LDAP directory for tests: slapd on loopback, in a directory of the test run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator.metastore.embedded.server_process import free_port

PEOPLE = "ou=people,dc=example,dc=com"
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_SCHEMAS = ("core", "cosine", "inetorgperson")


@contextmanager
def directory(place: Path, **passwords: str) -> Iterator[str]:
    """Its URL; the people of `passwords` are uid=NAME below PEOPLE. Skips the test, by name, without slapd."""
    if not shutil.which("slapd", path=_PATH):
        pytest.skip("no slapd here: apt-get install slapd")
    (place / "data").mkdir(parents=True)
    includes = "\n".join(f"include /etc/ldap/schema/{name}.schema" for name in _SCHEMAS)
    (place / "slapd.conf").write_text(
        f"{includes}\npidfile {place}/pid\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n"
        f'database mdb\nsuffix "dc=example,dc=com"\ndirectory {place}/data\nmaxsize 16777216\n'
    )
    entries = [
        "dn: dc=example,dc=com\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n",
        f"dn: {PEOPLE}\nobjectClass: organizationalUnit\nou: people\n",
        *(
            f"dn: uid={name},{PEOPLE}\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\nsn: {name}\n"
            f"userPassword: {password}\n"
            for name, password in passwords.items()
        ),
    ]
    environment = {**os.environ, "PATH": _PATH}
    known = ["-f", str(place / "slapd.conf")]
    subprocess.run(
        ["slapadd", *known], input="\n".join(entries), text=True, check=True, env=environment, capture_output=True
    )
    port = free_port(None)
    url = f"ldap://127.0.0.1:{port}"
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(["slapd", *known, "-h", url, "-d", "0"], env=environment, stdout=log, stderr=log)
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        assert server.poll() is None, (place / "log").read_text()
        yield url
    finally:
        server.terminate()
        server.wait()
