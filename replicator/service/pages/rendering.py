"""Templates and what they are filled with: times, sizes and names as a person reads them. Everything is escaped: markup
by Jinja, and characters that turn the direction of a text or clear a terminal by `printable`."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from replicator.core.text.printable import printable
from replicator.core.text.quantity import count_text, duration_text, size_text

HERE = Path(__file__).parent
ASSETS = {
    "page.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "idiomorph-ext.min.js": "text/javascript; charset=utf-8",
}
BYTES = {name: (HERE / "assets" / name).read_bytes() for name in ASSETS}
EDITION = hashlib.sha256(b"".join(BYTES.values())).hexdigest()[:12]
"""Part of the assets' addresses: a browser keeps them until they change."""

WORDS = {
    "current": "in sync",
    "behind": "behind",
    "late": "late",
    "blocked": "blocked",
    "none": "not replicated yet",
    "unknown": "not known",
}
"""Status of a policy in words."""

ILL = frozenset(
    {"late", "blocked", "unknown", "failed", "lost", "differs", "partial", "killed", "incomplete"}
    | {"failed_user", "failed_type", "expired"}  # jobs of ingestion
)
WELL = frozenset({"current", "done"})
AT_WORK = frozenset({"running", "published"})


_CODE = re.compile("`([^`]+)`")


def _shown(value: Any) -> Any:
    """What an expression of a template puts out."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def seconds_of(moment: str | float) -> float:
    """Since 1970, of ISO 8601; without a zone it is UTC. Raises ValueError."""
    if not isinstance(moment, str):
        return float(moment)
    found = datetime.fromisoformat(moment)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def relative(seconds: float) -> str:
    """From now: `12 min ago`, `in 38 s`."""
    if abs(seconds) < 1:
        return "now"
    return f"in {duration_text(seconds)}" if seconds > 0 else f"{duration_text(-seconds)} ago"


def when(moment: str | float | None, now: float | None = None) -> Markup:
    """A time, relative to `now` (None: the clock's), with the absolute one at hand; nothing for None. A text that is
    no time is shown as it is."""
    if moment is None or moment == "":
        return Markup("")
    try:
        at = seconds_of(moment)
        absolute = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(printable(str(moment)))
    apart = at - (time.time() if now is None else now)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        absolute.isoformat(timespec="seconds"), f"{absolute:%Y-%m-%d %H:%M:%S} UTC", relative(apart)
    )


def clock(moment: float) -> Markup:
    """A time of today."""
    at = datetime.fromtimestamp(moment, UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:%H:%M:%S} UTC"
    )


def lines(text: str) -> Markup:
    """A text of several lines, such as a log."""
    return Markup("\n").join(printable(each) for each in text.split("\n"))


def said(text: str) -> Markup:
    """A message or hint, with what stands between backticks as code."""
    parts = _CODE.split(text)
    codes = (Markup("<code>{}</code>").format(printable(each)) for each in parts[1::2])
    return Markup("").join(each for pair in zip(map(printable, parts[::2]), [*codes, ""], strict=True) for each in pair)


def css_class(state: str) -> str:
    """How a state looks; it is always a word, too."""
    return "ill" if state in ILL else "well" if state in WELL else "work" if state in AT_WORK else "calm"


def schedule(text: str) -> str:
    """A job's schedule; `every 300 s` is `every 5 min`."""
    match = re.fullmatch(r"every ([\d.e+]+) s", text)
    return f"every {duration_text(float(match[1]))}" if match else text


def as_json(value: Any) -> Markup:
    """An answer as a person reads it."""
    return lines(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def pretty(text: str) -> Markup:
    """JSON on lines of its own; another text as it is."""
    try:
        return as_json(json.loads(text))
    except ValueError:
        return lines(text)


_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_shown,
)
_TEMPLATES.filters |= {
    "when": when,
    "clock": clock,
    "duration": duration_text,
    "size": size_text,
    "count": count_text,
    "lines": lines,
    "as_json": as_json,
    "pretty": pretty,
    "said": said,
    "schedule": schedule,
    "quote": shlex.quote,
    "shell": shlex.join,
    "look": css_class,
    "word": lambda state: WORDS.get(state, state),
}
_TEMPLATES.globals |= {"edition": EDITION}


def render(request: Request, template: str, shown: dict[str, Any], status: int = 200) -> Response:
    """A page; with `?format=json` what it is made of."""
    if request.query_params.get("format") == "json":
        return Response(msgspec.json.encode(shown, enc_hook=str), status, media_type="application/json")
    query = f"?{request.url.query}" if request.url.query else ""
    more = {
        "here": f"{request.url.path}{query}",
        "as_data": f"{request.url.path}{query}{'&' if query else '?'}format=json",
        "path": request.url.path,
        "now": time.time(),
        "visitor": getattr(request.state, "visitor", None),
    }
    text = _TEMPLATES.get_template(template).render(more | shown)
    return HTMLResponse(text.encode("utf-8", "replace"), status)
