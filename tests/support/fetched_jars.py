"""Jars of a server of the tests, by a list beside this file: fetched once into the cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from replicator.metastore.embedded.distributions import fetch, read_list
from replicator.metastore.java import cache_directory, find_java, locked


@cache
def fetched_jars(place: str, listed: str) -> Path:
    """Their directory. place: of it in the cache, `NAME/VERSION`. listed: the list's file name."""
    directory = cache_directory(os.environ) / place
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        artifacts = read_list(Path(__file__).with_name(listed))
        fetch(artifacts, directory, find_java(os.environ), os.environ, f"tests need the jars of {place}")
    return directory
