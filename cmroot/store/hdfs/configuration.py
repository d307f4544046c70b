"""The files of a Hadoop configuration, as far as this package reads them itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

_FILES = ("core-site.xml", "hdfs-site.xml")


def hadoop_settings(conf: str | None = None) -> Mapping[str, str]:
    """By their names; `conf`: a directory, HADOOP_CONF_DIR if not given. Empty without files."""
    place = os.environ.get("HADOOP_CONF_DIR", "") if conf is None else conf
    return _read(place) if place else {}


@lru_cache(maxsize=32)
def _read(conf: str) -> Mapping[str, str]:
    found = {}
    for file in (Path(conf, name) for name in _FILES):
        if file.exists():
            for each in ElementTree.parse(file).getroot().iter("property"):
                found[each.findtext("name", "").strip()] = each.findtext("value", "").strip()
    return found


def client_settings(url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a filesystem's client that the configuration, which it reads itself, lacks."""
    authority = url.partition("://")[2].partition("/")[0]
    said = _single_services(settings)
    if url.startswith("hdfs:") and not settings.get(f"dfs.ha.namenodes.{authority}") and _ATTEMPTS not in settings:
        said[_ATTEMPTS] = "4"
    if not settings.get(_KEYS, "kms:").startswith("kms:"):
        said[_KEYS] = ""
    return said


_KEYS = "hadoop.security.key.provider.path"
"""Who has the keys of encryption zones. The client takes no other than a key server, not even for files outside of all
zones: without one it refuses those inside."""


_ATTEMPTS = "dfs.client.failover.max.attempts"
"""Of a client, before it says that a NameNode is away: 15 are Hadoop's, about three minutes, for one NameNode that
takes over from another. Where there is no other, 4 take about 15 seconds, and the next run goes on."""


def _single_services(settings: Mapping[str, str]) -> dict[str, str]:
    """Name services with one NameNode (`dfs.namenode.rpc-address.NAME`), said as if they had several: the client knows
    only those."""
    said: dict[str, str] = {}
    for name in (each.strip() for each in settings.get("dfs.nameservices", "").split(",")):
        address = settings.get(f"dfs.namenode.rpc-address.{name}")
        if address and not settings.get(f"dfs.ha.namenodes.{name}"):
            said |= {f"dfs.ha.namenodes.{name}": "only", f"dfs.namenode.rpc-address.{name}.only": address}
    return said
