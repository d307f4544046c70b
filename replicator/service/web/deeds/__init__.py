"""Deeds: actions over HTTP, each a run of the command line or a call of a verb, with consent, once and recorded."""
