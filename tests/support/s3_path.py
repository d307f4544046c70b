"""Objects of S3 for tests, with the methods of `pathlib.Path` that tests use; by boto3, so that what the product's
client wrote is looked at by another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError


@dataclass(frozen=True)
class S3Path:
    """`path` is absolute, below the bucket; as text it is a URI. `client`: of boto3."""

    client: Any = field(compare=False, repr=False)
    bucket: str
    path: str = "/"

    def __str__(self) -> str:
        return f"s3a://{self.bucket}{self.path}"

    def __truediv__(self, name: str) -> S3Path:
        return S3Path(self.client, self.bucket, f"{self.path.rstrip('/')}/{name}")

    @property
    def key(self) -> str:
        return self.path.strip("/")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        return S3Path(self.client, self.bucket, self.path.rpartition("/")[0] or "/")

    def is_relative_to(self, other: S3Path) -> bool:
        return f"{self.path}/".startswith(f"{other.path}/")

    def relative_to(self, other: S3Path) -> str:
        assert self.is_relative_to(other)
        return self.path[len(other.path) + 1 :]

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """There are none."""

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode())

    def write_bytes(self, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.key, Body=data)

    def rename(self, other: S3Path) -> None:
        self.client.put_object(Bucket=self.bucket, Key=other.key, Body=self.read_bytes())
        self.unlink()

    def rmtree(self) -> None:
        for each in [*self.rglob("*")]:
            each.unlink()

    def unlink(self) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=self.key)

    def exists(self) -> bool:
        return self.is_file() or any(self.rglob("*"))

    def is_file(self) -> bool:
        try:
            self.client.head_object(Bucket=self.bucket, Key=self.key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True

    def read_bytes(self) -> bytes:
        data = self.client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        assert isinstance(data, bytes)
        return data

    def iterdir(self) -> Iterator[S3Path]:
        names = {each.relative_to(self).partition("/")[0] for each in self.rglob("*")}
        yield from (self / name for name in sorted(names))

    def rglob(self, pattern: str) -> Iterator[S3Path]:
        """Objects alone; of patterns, `*` and `prefix*`."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.key}/" if self.key else ""
        )
        for page in pages:
            for each in page.get("Contents", ()):
                found = S3Path(self.client, self.bucket, f"/{each['Key']}")
                if not found.path.endswith("/") and found.name.startswith(pattern.rstrip("*")):
                    yield found
