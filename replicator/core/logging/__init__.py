"""Log records and progress of a running command: its steps, and the objects they are about."""
