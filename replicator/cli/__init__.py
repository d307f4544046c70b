"""The command line: parses arguments, calls one function, prints text or JSON."""
