"""HDFS's own checksum of a file, asked of its NameNode by WebHDFS: MD5 of the MD5s of its blocks' CRCs. It depends on
the block size: it tells a file from another on one filesystem, and says nothing of contents on two."""

from __future__ import annotations

import errno
import getpass
import http.client
import json
import os
import urllib.error
import urllib.parse
from functools import lru_cache
from typing import Any, cast

from cmroot.store.hdfs.configuration import hadoop_settings
from cmroot.store.hdfs.kerberized import kerberized, open_url
from cmroot.store.spelling import normal, split_authority

PATIENCE = 60.0
"""Seconds for an answer: a DataNode reads the CRCs of a block of 128 MiB in a fraction of one."""

_PORT = 9870
_ERRNO = {
    "FileNotFoundException": errno.ENOENT,
    "AccessControlException": errno.EACCES,
    "StandbyException": errno.EAGAIN,
}


def hdfs_checksum(path: str) -> str:
    """56 hex digits, as the metastore names recycled files. FileNotFoundError without a file, OSError with the
    NameNode's reason otherwise: no WebHDFS, no access."""
    answer = ask(path, "GETFILECHECKSUM")["FileChecksum"]
    return cast(str, answer["bytes"])[: 2 * int(answer["length"])]


def ask(path: str, operation: str, method: str = "GET", **parameters: str) -> dict[str, Any]:
    """What the active NameNode of a path answers to one operation; nothing is an empty answer. An answer that broke off
    is an OSError, too. With another method than GET it may have been done all the same."""
    store, key = split_authority(normal(path))
    user = {} if kerberized() else {"user.name": _user()}  # a ticket says who asks
    about = urllib.parse.urlencode({"op": operation, **user, **parameters})
    standing: OSError | None = None
    for address in web_addresses(store, os.environ.get("HADOOP_CONF_DIR", "")):
        url = f"{address}/webhdfs/v1{urllib.parse.quote(key or '/')}?{about}"
        try:
            with open_url(url, method, PATIENCE) as answer:
                return cast(dict[str, Any], json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            found = _refused(error, path)
            if found.errno != errno.EAGAIN:
                raise found from None
            standing = found
        except urllib.error.URLError as error:
            standing = error.reason if isinstance(error.reason, OSError) else error
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(errno.EIO, f"WebHDFS: its answer to {operation} cannot be read: {error}", path) from None
    raise standing or OSError(errno.ENODATA, "no NameNode is known", path)


def _refused(error: urllib.error.HTTPError, path: str) -> OSError:
    try:
        said = json.load(error)["RemoteException"]
        kind, message = said["exception"], said["message"].partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = str(error.code), error.reason
    return OSError(_ERRNO.get(kind, errno.EIO), f"WebHDFS: {kind}: {message}", path)


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


@lru_cache(maxsize=32)
def web_addresses(store: str, conf: str) -> tuple[str, ...]:
    """The NameNodes' HTTP servers of `hdfs://host:port` or `hdfs://service`, by the files of a Hadoop configuration."""
    settings = hadoop_settings(conf)
    scheme = "https" if settings.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    key, authority = f"dfs.namenode.{scheme}-address", store.partition("://")[2]
    host = authority.partition(":")[0]
    nodes = [each.strip() for each in settings.get(f"dfs.ha.namenodes.{authority}", "").split(",") if each.strip()]
    rpc = "dfs.namenode.rpc-address"
    by_address = [
        name.removeprefix(rpc) for name, value in settings.items() if name.startswith(rpc) and value == authority
    ]
    suffixes = [f".{authority}.{node}" for node in nodes] or [f".{authority}", *by_address, ""]
    written = [
        settings.get(key + suffix, "").replace("0.0.0.0", settings.get(rpc + suffix, host).partition(":")[0])
        for suffix in suffixes
    ]
    written = written if nodes else [each for each in written if each][:1]
    found = [each for each in written if each] or [f"{host}:{_PORT if scheme == 'http' else _PORT + 1}"]
    return tuple(f"{scheme}://{each}" for each in found)
