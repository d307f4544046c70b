"""The command line: arguments in, one call, text or JSON out."""
