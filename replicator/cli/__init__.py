"""The command line: parses arguments, calls one function, prints text or JSON.

Imports every room below; only `service` names it, for the command lines of jobs. Begin with `main.py`; `table.py` lists
the commands.
"""
