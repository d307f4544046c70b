"""Checking a root: entries against their names, the log against its markers, what is needed against what is there.

Nothing is changed. Each finding says what a repair would do, and whether bytes that are damaged or missing are still at
the place they were kept from.
"""

from cmroot.check.check import Checked, Workers, check
from cmroot.check.finding import DAMAGE, Finding

__all__ = ["DAMAGE", "Checked", "Finding", "Workers", "check"]
