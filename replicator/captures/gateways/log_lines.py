"""One line of the log for each message: names that clients send hold line ends and control characters, too."""

from __future__ import annotations

import logging

from replicator.core.text.quantity import printable


def one_line(record: logging.LogRecord) -> bool:
    """A filter of a logger, for whatever handlers there are."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True
