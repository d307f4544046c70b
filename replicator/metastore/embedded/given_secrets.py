"""Secrets among the settings of a server: read where a reference says, and masked in what is said of a start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from replicator.core.connections import is_reference, read_secret

_KEY = re.compile(r"password|secret", re.IGNORECASE)
_IN_URL = re.compile(r"\bpassword=([^&;\s]+)", re.IGNORECASE)


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """With the secrets that references name. Raises ConfigError for one that cannot be read."""
    return {
        key: read_secret(value, key) if _KEY.search(key) and is_reference(value) else value
        for key, value in settings.items()
    }


def secrets(settings: Mapping[str, str]) -> Iterator[str]:
    """Values of settings named so, and passwords in URLs."""
    for key, value in settings.items():
        if value and _KEY.search(key):
            yield value
        else:
            yield from _IN_URL.findall(value)


def masked(text: str, settings: Mapping[str, str]) -> str:
    for secret in sorted(secrets(settings), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
