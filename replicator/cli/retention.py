"""`replicator retention`: run the policies of a config store, and explain them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from replicator.cli.options import Session, json_option, parse_settings, pass_session
from replicator.cli.output import aligned, columns, emit

if TYPE_CHECKING:
    from replicator.retention.explain import Explained

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the job file, over what it says; repeatable.",
)


@click.group()
def retention() -> None:
    """Remove versions of datasets that are past their policy, as a config store says (Gobblin retention).

    \b
    Example:
      replicator retention run job.properties --metastore prod --cmroot /cm --dry-run
      replicator retention explain /data/events/loginEvent --config job.properties
    """


@retention.command()
@click.argument("path", metavar="PATH")
@click.option(
    "--config",
    "place",
    metavar="CONFIG",
    help="The job file, or a config store's directory; default: the store above PATH.",
)
@set_option
@json_option
@pass_session
def explain(session: Session, path: str, place: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Show the settings of a dataset, or of any key of the store, and which file and line gave each value.

    PATH is the dataset's path as the configuration spells it, or hive/DB/TABLE. Values that weaker keys set, too, are
    shown with the places that lose. Reads the configuration only.

    \b
    Example:
      replicator retention explain /data/events/loginEvent --config job.properties
      replicator retention explain hive/sales/orders --config /etc/store --json
    """
    from replicator.retention.explain import explain_job, explain_key
    from replicator.retention.job import read_job

    job = read_job(place or path, given=parse_settings(settings), environment=os.environ)
    if job.store:
        resolved = job.store.resolve(job.store.key(path) if place else job.store.prefix)
        explained = explain_key(resolved, path, job.store.place, job.store.version)
    else:
        explained = explain_job(job.settings, path)
    emit(explained, as_json, _explained_lines(explained))


def _explained_lines(explained: Explained) -> Iterable[str]:
    if explained.store:
        yield from aligned(
            [
                ("path", explained.path),
                ("store", f"{explained.store}, version {explained.version}"),
                ("keys", [f"{number}. {name}" for number, name in enumerate(explained.nodes, 1)]),
            ]
        )
        yield ""
    yield from columns(
        ["KEY", "VALUE", "WRITTEN AT", "THROUGH", "OVER"],
        ([each.key, each.value, each.at, each.through, ", ".join(each.hides)] for each in explained.values),
    )
    for warning in explained.warnings:
        yield f"warning: {warning}"
