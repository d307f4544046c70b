"""HOCON, the language of the config store: text to values that know their file and line, merged late, resolved once."""
