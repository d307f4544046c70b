"""`replicator cm`: the commands of a change-management root."""

from __future__ import annotations

import click

from replicator.cli.cm.kept import find, get, ls
from replicator.cli.cm.pins import hold, release, slots
from replicator.cli.cm.upkeep import check, compact, expire
from replicator.cli.renamed import renamed_command


@click.group()
def cm() -> None:
    """Manage a change-management root ($cmroot): kept files, slots, holds, expiry.

    \b
    Example:
      replicator cm ls --cmroot /cm
      replicator cm expire --cmroot /cm --older-than 7d
    """


for _command in (check, compact, expire, find, get, hold, ls, release, slots):
    cm.add_command(_command)
renamed_command(cm, "restore", get)
