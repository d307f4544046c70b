"""The `replicator` command: global options, the lookup of commands, and the report of every failure, as text, as JSON,
or as a Nagios plugin's line.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import shutil
import sys
import threading
import time as clocks
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, get_args

import click
import msgspec

from cmroot.store.drivers import use
from replicator.cli.options import Duration, Session
from replicator.cli.output import BROKEN_PIPE, begin_logging, failure, note, show_error, write
from replicator.cli.table import CommandTable, PerCommand
from replicator.core.config import NAME, Config, read_config
from replicator.core.logging import SERVICE_RUN, LogConfig, LogFormat, LogLevel, lines_about
from replicator.core.runtime import INTERRUPTED, TERMINATED, Terminated, beat_each, raise_on_sigterm
from replicator.core.text import without_credentials
from replicator.errors import ConfigError, Error
from replicator.policies.checks import NAGIOS, nagios_failure


def as_plugin(answer: Callable[[], int]) -> int:
    """Runs a command line for Nagios, which would take the exit code of an error for a warning: a failure outside of
    the check prints the plugin's one line, with the state unknown."""
    try:
        return answer()
    except click.ClickException as error:
        message = error.format_message()
    except Error as error:
        message = f"{error.message} ({error.hint})" if error.hint else error.message
    except (click.Abort, KeyboardInterrupt, Terminated):
        message = "interrupted"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    write([nagios_failure(message)])
    return NAGIOS["unknown"]


SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "REPLICATOR",
    "max_content_width": shutil.get_terminal_size((80, 24)).columns,
}
AGAIN = "run the same command again to finish"


@click.group(cls=CommandTable, context_settings=SETTINGS)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Configuration file; default: replicator.toml in the working directory, if it exists.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log at level info, and show tracebacks.")
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    help="Log lines as text, or one JSON object each; with json also notes and errors on standard error.  "
    "[default: log.format, else console]",
)
@click.option(
    "--log-level",
    type=click.Choice(get_args(LogLevel)),
    help="Minimum level that is logged.  [default: log.level; else info with --verbose or a file, else warning]",
)
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Append the log to this file; it may be rotated.  [default: log.file, else standard error]",
)
@click.option(
    "--heartbeat",
    type=Duration(),
    help="Interval of the log line that commands with --follow write even if nothing happens.  "
    "[default: log.heartbeat, else 1m]",
)
@click.version_option(package_name="replicator", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, /, config: Path | None, verbose: bool, heartbeat: timedelta | None, **log: Any) -> None:
    """Keep an exact second copy of a Hive-metastore warehouse, and every file that it replaces or drops.

    Every option can also be given as REPLICATOR_<COMMAND>_<OPTION> in the environment, many in replicator.toml.
    A POLICY of replicator.toml provides metastores, roots, databases and locations; options override it.

    \b
    Example: replicate a database once, then keep up
      replicator dump --source thrift://a:9083 --cmroot /cm --db sales --out /dumps/1
      replicator load /dumps/1 --target thrift://b:9083
      replicator dump --source thrift://a:9083 --cmroot /cm --db sales --since /dumps/1 --out /dumps/2
      replicator load /dumps/2 --target thrift://b:9083
    """
    given = LogConfig(**{name.removeprefix("log_"): value for name, value in log.items()})
    begin_logging(given, verbose=verbose)
    settings = _configured(config, context.invoked_subcommand)
    begin_logging(_logged_as(given, settings.log), verbose=verbose)
    beat_each(heartbeat or settings.log.interval)
    use(settings.stores)
    if settings.purge.readers is not None:
        note(f"warning: purge.readers of {settings.looked_for} is now purge.grace")
    began = context.obj if isinstance(context.obj, float) else clocks.monotonic()
    context.obj = Session(settings, verbose, began)
    context.default_map = PerCommand(lambda name, command: defaults_of(settings, name, command))  # type: ignore[assignment]


def _logged_as(given: LogConfig, configured: LogConfig) -> LogConfig:
    """Returns the value of the command line or the environment, else that of the configuration."""
    return LogConfig(
        given.format or configured.format,
        given.level or configured.level,
        given.file or configured.file,
        configured.heartbeat,
    )


def _configured(file: Path | None, command: str | None) -> Config:
    """Returns the configuration; an empty one for `diagnose` if the file is invalid, which `diagnose` reports."""
    try:
        return read_config(file)
    except ConfigError:
        path = file or Path(NAME)
        if command == "diagnose" and path.is_file():
            return Config(looked_for=str(path.absolute()))
        raise


def defaults_of(config: Config, name: str, command: click.Command) -> dict[str, Any]:
    """The file's `[defaults]` for the options that a command has."""
    found = _options_among(command, config.default_values())
    if name in ("dump", "load", "show") and config.dumps.key_file is not None:
        found["key_file"] = config.dumps.key_file
    if name == "purge":
        of_purge = {key: value for key, value in msgspec.to_builtins(config.purge).items() if value is not None}
        if "table_whitelist" in of_purge:
            of_purge["whitelist"] = of_purge.pop("table_whitelist")
        if "readers" in of_purge:
            of_purge.setdefault("grace", of_purge.pop("readers"))
        for verb, options in _options_among(command, of_purge).items():
            found[verb] |= options
    return found


def _options_among(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values for which a command has options; for a group, also those of its commands."""
    options = {parameter.name for parameter in command.params}
    found = {name: value for name, value in values.items() if name in options}
    if isinstance(command, click.Group):
        found |= {name: _options_among(each, values) for name, each in command.commands.items()}
    return found


def run(arguments: Sequence[str], began: float | None = None) -> int:
    """Runs a command line and returns the exit code. Reports every failure, as JSON with `--json`, and as a Nagios
    plugin with `--nagios`. began: when the program was started, on the monotonic clock; None: now."""
    began = clocks.monotonic() if began is None else began
    if "--nagios" in arguments:
        return as_plugin(lambda: _answer(arguments, began))
    with lines_about(run=uuid.uuid4().hex[:12], service_run=os.environ.get(SERVICE_RUN)):
        return _told(arguments, began)


def _told(arguments: Sequence[str], began: float) -> int:
    as_json = bool({"--json", "--json-lines"} & set(arguments))
    verbose = bool({"-v", "--verbose"} & set(arguments))
    try:
        return _answer(arguments, began)
    except click.ClickException as error:
        return _tell_usage(error, as_json)
    except (click.Abort, KeyboardInterrupt):
        return _tell("Interrupted", "interrupted", AGAIN, INTERRUPTED, as_json)
    except Terminated:
        return _tell("Terminated", "terminated by a signal", AGAIN, TERMINATED, as_json)
    except Error as error:
        if verbose:
            note(without_credentials(traceback.format_exc().rstrip()))
        show_error(failure(error), as_json)
        return error.exit_code
    except Exception as error:
        return _tell_unexpected(error, as_json, verbose)


def _answer(arguments: Sequence[str], began: float) -> int:
    answer = cli.main(args=list(arguments), prog_name="replicator", standalone_mode=False, obj=began)
    return answer if isinstance(answer, int) else 0


def _tell(name: str, message: str, hint: str, code: int, as_json: bool) -> int:
    fields = {"status": "failed", "error": name, "message": message, "hint": hint, "exit_code": code}
    show_error(fields, as_json)
    return code


def _tell_usage(error: click.ClickException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "replicator"
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        error.show()
        return error.exit_code
    usage = isinstance(error, click.UsageError)
    message = error.format_message() if not isinstance(error, click.exceptions.NoArgsIsHelpError) else "no command"
    message = without_credentials(message)  # it quotes what was given
    hint = f"{_meant(error, context)}see `{path} --help`"
    return _tell("UsageError" if usage else "Error", message, hint, error.exit_code, as_json)


def _meant(error: click.ClickException, context: click.Context | None) -> str:
    """Returns the beginning of a hint for arguments of another command, or of an option; "" if there is none."""
    command = context.command if context else None
    given = str((context.params.get("policy") if context else None) or "")
    if isinstance(error, click.MissingParameter) and command and command.name == "restore" and "/" in given:
        return f"`replicator load {given}` loads a dump; "
    has_db = command is not None and any("--db" in each.opts for each in command.params)
    return "a database is given as --db NAME; " if has_db and "extra argument" in error.format_message() else ""


def _tell_unexpected(error: Exception, as_json: bool, verbose: bool) -> int:
    if verbose:
        note(without_credentials(traceback.format_exc().rstrip()))
    name = type(error).__name__
    if isinstance(error, OSError):
        return _tell(name, _system_text(error), _system_hint(error, verbose), 1, as_json)
    hint = "please report this bug with the traceback" if verbose else "run again with --verbose for the traceback"
    return _tell(name, f"internal error: {name}: {error}", hint, 1, as_json)


def _system_text(error: OSError) -> str:
    """Returns the system's message, preceded by the name of the file."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    if not names or not error.strerror:
        return str(error)
    return f"{' to '.join(map(os.fsdecode, names))}: {error.strerror}"


def _system_hint(error: OSError, verbose: bool) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return "check the path, and that the filesystem it should be on is mounted"
        case errno.EIO | errno.ESTALE | errno.ENOTCONN | errno.EHOSTDOWN | errno.ETIMEDOUT:
            return "check the disk or mount; then run the same command again"
    return "" if verbose else "--verbose shows where it happened"


def main() -> NoReturn:
    """The console script."""
    speak_utf8()
    collect_rarely()
    raise_on_sigterm()
    _keep_stdout_for_answers()
    try:
        code = run(sys.argv[1:], process_start())
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the process with exactly this exit code, after open resources were closed, threads that must end were
    joined, and the output was written. Skips the interpreter's teardown, in which libraries' threads that still run (an
    event loop, a reader's pool) sometimes abort the process."""
    getattr(threading, "_shutdown", lambda: None)()  # as the interpreter does at its end, in this order
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # the reader has closed the pipe, or the stream is closed
        code = code or BROKEN_PIPE
    os._exit(code)


def process_start() -> float:
    """Returns the start of this process on the monotonic clock: imports take as long as some commands."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = clocks.clock_gettime(clocks.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        age = 0.0
    return clocks.monotonic() - age


def speak_utf8() -> None:
    """Restarts the process in UTF-8 if the locale, such as C, has only ASCII: names of files and tables may have other
    letters."""
    if sys.getfilesystemencoding().lower() not in ("utf-8", "utf8") and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        program = [sys.executable, "-m", "replicator.cli.main", *sys.argv[1:]]
        os.execv(sys.executable, [os.fsencode(each) for each in program])


def collect_rarely() -> None:
    """Reduces garbage collections. Decoding a dump or a metastore's responses creates millions of objects that are used
    until the end: collections that scan them repeatedly cost up to a third of the time and free nothing."""
    gc.set_threshold(50_000)
    gc.freeze()


def _keep_stdout_for_answers() -> None:
    """Redirects the standard output of child processes to standard error: output of Spark's Java would corrupt the
    single JSON object."""
    try:
        ours = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # closed
        return
    sys.stdout = open(ours, "w", encoding=sys.stdout.encoding, errors="backslashreplace")  # noqa: SIM115


if __name__ == "__main__":
    main()
