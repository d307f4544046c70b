"""The command line: parses arguments, calls one function, prints text or JSON.

Imports every room below; no room but `service` (the command lines of jobs) names it. Begin with `main.py`; `table.py` lists the commands.
"""
