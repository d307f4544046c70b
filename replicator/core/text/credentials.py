"""Credentials in text: what is quoted of URLs that somebody gave. Pure."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@]*:[^\s@]*@[^\s']*")


def without_credentials(text: str) -> str:
    """The text; of URLs with user and password, their scheme."""
    return _CREDENTIALS.sub(r"\1***@...", text) if "@" in text else text
