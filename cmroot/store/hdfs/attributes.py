"""What HDFS keeps of a file or directory beside its bytes: owner, mode, ACL, replication, extended attributes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cmroot.store.hdfs.checksums import ask
from cmroot.store.hdfs.hdfs_store import SCHEMES, HdfsStore
from cmroot.store.hdfs.native import told
from cmroot.store.spelling import naming, scheme

_STICKY = 0o1777


def carry_attributes(source: str, target: str, names: Collection[str]) -> None:
    """Gives the target what the source has of these ATTRIBUTES (owner: the group, too); from HDFS to HDFS, else nothing
    is done. May run twice. Raises NotWritable where this user may not: owners are the superuser's to change; and
    FileNotFoundError when one of them is gone."""
    if not names or {scheme(source), scheme(target)} - SCHEMES:
        return
    here, there = HdfsStore(source), HdfsStore(target)
    old, new = here.key(source), there.key(target)
    with naming(source), told():
        found = here.filesystem.client.get_file_info(old)
        listed = here.filesystem.client.get_acl_status(old) if "acl" in names else None
    given = ask(source, "GETXATTRS", encoding="hex")["XAttrs"] if "xattr" in names else ()
    with naming(target), told():
        client = there.filesystem.client
        if listed is not None:
            _set_acl(client, new, found.permission, listed.entries)
        if "mode" in names:
            client.set_permission(new, found.permission & _STICKY)
        if "replication" in names and not found.isdir:
            client.set_replication(new, found.replication)
    with naming(target):
        for each in given:
            if each["name"].startswith("user."):  # others are the superuser's, or the server's own
                value = each.get("value") or "0x"
                ask(
                    target,
                    "SETXATTR",
                    method="PUT",
                    flag="CREATE,REPLACE",
                    **{"xattr.name": each["name"], "xattr.value": value},
                )
    if "owner" in names:  # last: what is somebody else's may be out of reach
        with naming(target), told():
            client.set_owner(new, found.owner, found.group)


def _set_acl(client: Any, path: str, mode: int, entries: Any) -> None:
    """HDFS lists an ACL without the owner's and the others' entries, which are in the mode, and sets none without."""
    from hdfs_native import AclEntry

    client.remove_acl(path)
    if not entries:
        return
    named = any(each.type == "group" and not each.name and each.scope == "access" for each in entries)
    owning: list[tuple[Any, int]] = [("user", mode >> 6 & 7), ("other", mode & 7)]
    owning += [] if named else [("group", mode >> 3 & 7)]
    whole = [AclEntry(kind, "access", _letters(bits)) for kind, bits in owning]
    client.set_acl(path, [*whole, *entries])


def _letters(bits: int) -> Any:
    return "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
