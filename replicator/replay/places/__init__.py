"""Where objects lie on a target, who else lies there, and how a directory is cleared or left."""
