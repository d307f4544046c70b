"""Links of a page to what is in the repository and not on the site lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    here = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, match[1]))
        return match[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/main/{path})"

    return _LINK.sub(absolute, markdown)
