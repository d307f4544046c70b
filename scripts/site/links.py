"""Links of a page to what is in the repository and not on the site lead to the repository; and the script that the
search needs where the site has no server."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_LINK = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    here = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, match[1]))
        return match[0] if path.startswith("docs/") else f"]({config.extra['repository']}/blob/main/{path})"

    return _LINK.sub(absolute, markdown)


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Adds npm's iframe-worker 1.0.4 (MIT): a web worker for pages that are files."""
    name = "assets/iframe-worker.js"
    files.append(File.generated(config, name, content=Path(__file__).with_name("iframe-worker.js").read_text()))
    return files
