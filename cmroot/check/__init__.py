"""Checks of a root: retained files against their names, the log against its markers, required contents."""

from cmroot.check.check import Checked, check
from cmroot.check.finding import DAMAGE, RootFinding
from cmroot.check.required_contents import Workers

__all__ = ["DAMAGE", "Checked", "RootFinding", "Workers", "check"]
