"""The command line: parses arguments, calls one function, prints text or JSON.

Imports `commands` and `service`. Begin with `main.py`; `table.py` lists the commands.
"""
