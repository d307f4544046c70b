"""Users of moto with few rights."""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3

from cmroot.store.drivers import filesystem_of


@contextmanager
def few_rights() -> Iterator[Callable[..., None]]:
    """Within, `become(*actions)` makes this process a user who may do these everywhere; `become(policy=...)` one with
    such a policy document. Nothing else is allowed to it."""
    endpoint, before = os.environ["AWS_ENDPOINT_URL"], dict(os.environ)

    def become(*actions: str, policy: dict[str, Any] | None = None) -> None:
        administrator()
        iam = boto3.Session().client("iam")
        name = f"user-{uuid.uuid4().hex[:8]}"
        iam.create_user(UserName=name)
        allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        document = json.dumps(policy or {"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=document)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        os.environ |= {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        check_rights("0")

    def check_rights(after: str) -> None:
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", after.encode(), plain, method="POST")
        urllib.request.urlopen(request).read()
        filesystem_of.cache_clear()  # a filesystem keeps the credentials it was made with

    def administrator() -> None:
        os.environ.clear()
        os.environ.update(before)
        check_rights("inf")

    try:
        yield become
    finally:
        administrator()
