"""Which addresses an embedded metastore listens on: a 2.3 server listens on all of them, and has no setting for it.

The server gets its socket from one static method of `HiveAuthUtils`. A jar with another class of that name, first on
the class path, gives it one that is bound to the address in a system property. The class is put together here, as a
Java runtime has no compiler.
"""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

from replicator.metastore.java import write_staged

HOST = "replicator.bind"  # the system property
LOOPBACK = "127.0.0.1"

_CLASS = "org/apache/hadoop/hive/common/auth/HiveAuthUtils"
_SOCKET = "org/apache/thrift/transport/TServerSocket"
_ADDRESS = "java/net/InetSocketAddress"
_PUBLIC, _STATIC, _SUPER = 0x0001, 0x0008, 0x0020
_JAVA_5 = 49  # the last version whose methods need no map of their stack
_NEW, _DUP, _LDC, _ILOAD_1, _ARETURN, _INVOKESPECIAL, _INVOKESTATIC = 0xBB, 0x59, 0x12, 0x1B, 0xB0, 0xB7, 0xB8


def binding_jar(place: Path) -> Path:
    """The jar, written when it is not there yet."""
    if not place.exists():
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as jar:
            jar.writestr(zipfile.ZipInfo(f"{_CLASS}.class"), _class())
        write_staged(place, content.getvalue())
    return place


class _Constants:
    """A class's pool of constants; each is there once."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def _add(self, entry: bytes) -> int:
        if entry not in self._entries:
            self._entries.append(entry)
        return self._entries.index(entry) + 1

    def text(self, text: str) -> int:
        data = text.encode()
        return self._add(struct.pack(">BH", 1, len(data)) + data)

    def string(self, text: str) -> int:
        return self._add(struct.pack(">BH", 8, self.text(text)))

    def type(self, name: str) -> int:
        return self._add(struct.pack(">BH", 7, self.text(name)))

    def method(self, of: str, name: str, signature: str) -> int:
        both = self._add(struct.pack(">BHH", 12, self.text(name), self.text(signature)))
        return self._add(struct.pack(">BHH", 10, self.type(of), both))

    def encode(self) -> bytes:
        return struct.pack(">H", len(self._entries) + 1) + b"".join(self._entries)


def _class() -> bytes:
    """getServerSocket(_, port): new TServerSocket(new InetSocketAddress(System.getProperty(HOST, LOOPBACK), port))"""
    pool = _Constants()
    code = b"".join(
        [
            struct.pack(">BHB", _NEW, pool.type(_SOCKET), _DUP),
            struct.pack(">BHB", _NEW, pool.type(_ADDRESS), _DUP),
            bytes([_LDC, pool.string(HOST), _LDC, pool.string(LOOPBACK)]),
            _call(
                _INVOKESTATIC,
                pool.method(
                    "java/lang/System", "getProperty", "(Ljava/lang/String;Ljava/lang/String;)Ljava/lang/String;"
                ),
            ),
            bytes([_ILOAD_1]),
            _call(_INVOKESPECIAL, pool.method(_ADDRESS, "<init>", "(Ljava/lang/String;I)V")),
            _call(_INVOKESPECIAL, pool.method(_SOCKET, "<init>", f"(L{_ADDRESS};)V")),
            bytes([_ARETURN]),
        ]
    )
    stack, variables = 6, 2
    body = struct.pack(">HHI", stack, variables, len(code)) + code + struct.pack(">HH", 0, 0)
    method = (
        struct.pack(
            ">HHHHHI",
            _PUBLIC | _STATIC,
            pool.text("getServerSocket"),
            pool.text(f"(Ljava/lang/String;I)L{_SOCKET};"),
            1,
            pool.text("Code"),
            len(body),
        )
        + body
    )
    names = struct.pack(">HHH", _PUBLIC | _SUPER, pool.type(_CLASS), pool.type("java/lang/Object"))
    return (
        struct.pack(">IHH", 0xCAFEBABE, 0, _JAVA_5)
        + pool.encode()
        + names
        + struct.pack(">HH", 0, 0)  # interfaces, fields
        + struct.pack(">H", 1)
        + method
        + struct.pack(">H", 0)
    )


def _call(kind: int, method: int) -> bytes:
    return struct.pack(">BH", kind, method)
