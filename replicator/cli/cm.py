"""`replicator cm`: the commands of a change-management root, with `slots`, `hold` and `release`: the contents that each
consumer retains, and for how long. And `gateway`: a proxy of the metastore that stores files in `$cmroot` before a drop
deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from replicator.cli.cm_files import check, compact, expire, find, get, ls
from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, size_text, time_text
from replicator.cli.table import renamed_command
from replicator.commands.capture import gateway as run_gateway
from replicator.commands.cm import cm_hold, cm_release, cm_slots, cm_slots_confirm, cm_slots_create, cm_slots_drop
from replicator.core.text import duration_text
from replicator.replay.restore.kept import PinList, Pinned

F = TypeVar("F", bound=Callable[..., Any])


def _root_option(command: F) -> F:
    """`--cmroot`, here or before the subcommand's name."""

    def given(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        above = context.parent.params.get("cmroot") if context.parent else None
        if value is None and context.parent is not None and above is not None:
            source = context.parent.get_parameter_source("cmroot")
            context.set_parameter_source("cmroot", source or ParameterSource.COMMANDLINE)
            return str(above)
        return value

    return click.option("--cmroot", metavar="PLACE", callback=given, help="The change-management root.")(command)


@click.group(invoke_without_command=True)
@options_of(cm_slots, engine=True, positional=False)
@json_option
@pass_session
@click.pass_context
def slots(context: click.Context, session: Session, /, as_json: bool, **given: Any) -> int:
    """List slots, holds and pinned dumps.

    Shows the lag and retained size of each. A slot retains the files that its consumer has not loaded yet. `dump
    --slot` creates one and the load confirms it; the subcommands are for manual changes.

    \b
    Example:
      replicator cm slots --cmroot /cm
      replicator cm slots create dr --cmroot /cm
      replicator cm slots drop dr --cmroot /cm
    """
    if context.invoked_subcommand:
        return 0
    listed = session.call(cm_slots, **given)
    emit(listed, as_json, _pin_lines(listed))
    return 0


def _pin_lines(listed: PinList) -> Iterable[str]:
    rows: list[tuple[Any, ...]] = [
        (
            "slot",
            each.name,
            each.position,
            each.event,
            f"{count_text(each.lag_events, 'event')}",
            _after(each.lag_seconds),
            _after(each.age_seconds),
            *_held(each.held),
            _remark(each),
        )
        for each in listed.slots
    ]
    for kind, pins in (("hold", listed.holds), ("dump", listed.dumps)):
        for pin in pins:
            where = pin.get("needs_after", pin.get("position"))
            about = pin.get("reason") or pin.get("place") or ""
            rows.append((kind, pin["name"], where, pin["event"], "", "", pin["created"], *_held(pin["held"]), about))
    head = ("kind", "name", "position", "event", "lag", "time lag", "confirmed", "holds", "alone", "remark")
    if rows:
        yield from columns(head, rows, right=("position", "event", "lag", "time lag", "holds", "alone"))
    else:
        yield "no slots, holds or dumps: no files are kept for consumers"
    for path in listed.damaged:
        yield f"damaged: {path} (nothing expires until it is restored or dropped)"


def _after(seconds: int | None) -> str:
    return "" if seconds is None else duration_text(seconds)


def _held(held: dict[str, Any] | None) -> tuple[str, str]:
    return ("", "") if held is None else (size_text(held["bytes"]), size_text(held["alone_bytes"]))


def _remark(slot: Any) -> str:
    if slot.given_up:
        return f"invalidated at {slot.given_up}"
    return f"awaits {slot.awaits}" if slot.awaits else slot.consumer


@slots.command()
@options_of(cm_slots_create, without=("cmroot",))
@_root_option
@json_option
@pass_session
def create(session: Session, /, as_json: bool, **given: Any) -> int:
    """Register a consumer.

    Files that the source had after the consumer's position do not expire until the consumer confirms them.

    \b
    Example:
      replicator cm slots create dr --cmroot /cm --consumer "the copy in the other data centre"
    """
    return _tell(session.call(cm_slots_create, **given), as_json)


@slots.command()
@options_of(cm_slots_confirm, without=("cmroot",))
@_root_option
@json_option
@pass_session
def confirm(session: Session, /, as_json: bool, **given: Any) -> int:
    """Confirm a consumer's position. The load of a dump with a slot does this by itself.

    \b
    Example:
      replicator cm slots confirm dr --cmroot /cm --at /dumps/7
    """
    return _tell(session.call(cm_slots_confirm, **given), as_json)


@slots.command()
@options_of(cm_slots_drop, without=("cmroot",))
@_root_option
@json_option
@pass_session
def drop(session: Session, /, as_json: bool, **given: Any) -> int:
    """Remove a consumer's slot. The next expiry deletes files that only the slot needs.

    \b
    Example: replicator cm slots drop dr --cmroot /cm
    """
    return _tell(session.call(cm_slots_drop, **given), as_json)


@click.command()
@options_of(cm_hold)
@json_option
@pass_session
def hold(session: Session, /, as_json: bool, **given: Any) -> int:
    """Hold a recovery point.

    Its files do not expire until the hold is released. Files that expired before remain deleted: a past recovery
    point can be restored only as far as its files are still kept.

    \b
    Example:
      replicator cm hold before-migration --cmroot /cm --reason "ticket 4711"
      replicator cm hold audit --cmroot /cm --at 2026-03-01T00:00:00Z
    """
    return _tell(session.call(cm_hold, **given), as_json)


@click.command()
@options_of(cm_release)
@json_option
@pass_session
def release(session: Session, /, as_json: bool, **given: Any) -> int:
    """Release a hold. The next expiry deletes files that only the hold needs.

    \b
    Example: replicator cm release before-migration --cmroot /cm
    """
    return _tell(session.call(cm_release, **given), as_json)


def _tell(pinned: Pinned, as_json: bool) -> int:
    pin = pinned.pin or {}
    emit(
        pinned,
        as_json,
        aligned(
            [
                (pinned.status, pinned.name),
                ("at", f"event {pin['event']}, position {pin['position']}, {time_text(pinned.time)}" if pin else None),
                ("for", pin.get("consumer") or pin.get("reason") or None),
            ]
        ),
    )
    return 0


# ---- the group -------------------------------------------------------------------------------------------------------


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


# ---- gateway ---------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_gateway)
@json_option
@pass_session
def gateway(session: Session, /, as_json: bool, **given: Any) -> int:
    """Serve the source's metastore to any client, and store the files that a drop would delete in $cmroot first.

    Speaks the binary thrift protocol; TLS and Kerberos by [gateway] in replicator.toml. Without Kerberos or client
    certificates, every client that can reach the port has access. Protects the server's default catalog; drops in other
    catalogs (Hive 3 and newer) are refused. Ends with SIGTERM or SIGINT, after current calls.

    \b
    Example:
      replicator gateway --source thrift://a:9083 --cmroot /warehouse/.cmroot --listen 10.0.0.5:9084
      spark-sql --conf spark.hadoop.hive.metastore.uris=thrift://gateway:9084
    """
    upstream = session.config.metastore_uri(given["source"])
    report = session.call(run_gateway, ready=lambda uri: note(f"listening on {uri} for {upstream}"), **given)
    lines = [
        f"stopped after {count_text(report.calls, 'call')} of {count_text(report.connections, 'client')}: "
        f"{report.intercepted:,} intercepted, {report.refused:,} refused, "
        f"{count_text(report.files, 'file')} moved, {size_text(report.bytes)}"
        + (f"; {count_text(report.cut_off, 'call')} cut off" if report.cut_off else "")
    ]
    emit(report, as_json, lines)
    return report.exit_code
