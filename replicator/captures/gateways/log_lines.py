"""One log line per message, because names sent by clients may contain line ends and control characters."""

from __future__ import annotations

import logging

from replicator.core.text import printable


def one_line(record: logging.LogRecord) -> bool:
    """Filters the records of a logger, for any of its handlers."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True
