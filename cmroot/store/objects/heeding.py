"""What a store heeds of the digests and conditions that it is sent."""

from __future__ import annotations

from typing import Any, NamedTuple

from fsspec import filesystem as driver_of

from cmroot.store.objects.own_objects import remove_own
from cmroot.store.s3 import code_of, copy_if, md5_of, named


class Heeds(NamedTuple):
    """Whether a store compares what arrives with its digest (`digests`), and heeds the condition of a copy (`copies`).
    Some stores that speak S3 take both for decoration."""

    digests: bool
    copies: bool


def heeds(filesystem: Any, probe: str) -> Heeds:
    """Found out by trying, with objects that are written and removed again. `probe`: a key that nobody uses."""
    copy = probe + "-copy"
    try:
        filesystem.call_s3("put_object", **named(probe), Body=b"")
        copies = not copy_if(filesystem, probe, copy, "of-no-object")
        return Heeds(not _takes_wrong_digest(filesystem, probe), copies)
    finally:
        for key in (probe, copy):
            remove_own(filesystem, key)


def _takes_wrong_digest(filesystem: Any, key: str) -> bool:
    try:
        _asking_once(filesystem).call_s3("put_object", **named(key), Body=b"these", ContentMD5=md5_of(b"others"))
    except OSError as error:
        if code_of(error) in ("BadDigest", "InvalidDigest"):
            return False
        raise
    return True


def _asking_once(filesystem: Any) -> Any:
    """The same without the driver's tries: it sends again what is refused for its digest, for seven seconds."""
    config = {**filesystem.config_kwargs, "retries": {"total_max_attempts": 1}}
    options = {**filesystem.storage_options, "config_kwargs": config, "skip_instance_cache": True}
    return driver_of("s3", **options)
