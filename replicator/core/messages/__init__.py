"""Messages to others: a signed POST, or the standard input of a command."""
