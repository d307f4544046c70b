"""The bundle: parts, each made by itself, masked, and written into one archive. What cannot be made is named in it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from replicator.commands.diagnosis.masking import Mask
from replicator.core.not_replicated import Report
from replicator.errors import Error, Refused

LARGEST = 4 << 20
"""Bytes of one part. A larger one is cut, and said to be."""


class MissingPart(msgspec.Struct, frozen=True):
    """part: its name in the bundle. error, hint: why it could not be had."""

    part: str
    error: str
    hint: str = ""


class Bundle:
    """Parts by their names. `missing`: what could not be had, or only in part."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self.parts: dict[str, bytes] = {}
        self.missing: list[MissingPart] = []

    def add(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, as JSON, or as it is where it is a text. Whatever goes wrong is part of the diagnosis:
        it is named, and None is returned."""
        try:
            made = make()
        except Exception as error:
            self.miss(name, error)
            return None
        if isinstance(made, str):
            data = self.mask.text(made).encode(errors="backslashreplace")
        else:
            value = made.to_dict() if isinstance(made, Report) else msgspec.to_builtins(made, str_keys=True)
            data = json.dumps(self.mask.value(value), indent=1, ensure_ascii=False).encode(errors="backslashreplace")
        if len(data) > LARGEST:
            self.lack(name, f"is cut after {LARGEST} of its {len(data)} bytes")
        self.parts[name] = data[:LARGEST]
        return made

    def miss(self, name: str, error: Exception) -> None:
        said = error.message if isinstance(error, Error) else str(error) or type(error).__name__
        hint = error.hint if isinstance(error, Error) else ""
        kind = type(error).__name__
        self.missing.append(MissingPart(name, self.mask.text(f"{kind}: {said}"), self.mask.text(hint or "")))

    def lack(self, name: str, text: str) -> None:
        self.missing.append(MissingPart(name, self.mask.text(text)))

    def write(self, path: Path, made: float, *, overwrite: bool) -> int:
        """As a tar.gz that only its owner may read, whole or not at all; its size in bytes. made: seconds since 1970.
        Raises Refused for a file that is there, without `overwrite`; OSError."""
        path = path.absolute()
        handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                self._pack(file, path.name.partition(".")[0], made)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            if overwrite:
                os.replace(staged, path)
            else:
                os.link(staged, path)  # the name appears with all its bytes, for one caller only
        except FileExistsError:
            raise _there(path) from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        return size

    def _pack(self, to: BinaryIO, directory: str, made: float) -> None:
        with (
            gzip.GzipFile(fileobj=to, mode="wb", filename="", mtime=made) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, data in sorted(self.parts.items()):
                entry = tarfile.TarInfo(f"{directory}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(made), 0o600
                archive.addfile(entry, io.BytesIO(data))


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raises Refused."""
    if os.path.lexists(path) and not overwrite:
        raise _there(path)


def _there(path: Path) -> Refused:
    return Refused(f"{path} is there already", hint="choose another --out, or give --overwrite")
