"""Checking a root: entries against their names, the log against its markers, needs against contents."""

from cmroot.check.check import Checked, Workers, check
from cmroot.check.finding import DAMAGE, Finding

__all__ = ["DAMAGE", "Checked", "Finding", "Workers", "check"]
