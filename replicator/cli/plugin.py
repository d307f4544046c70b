"""Commands as Nagios runs them."""

from __future__ import annotations

from collections.abc import Callable

import click

from replicator.cli.output import write
from replicator.cli.signals import Terminated
from replicator.errors import Error
from replicator.policies.checks.finding import NAGIOS, nagios_failure


def as_plugin(answer: Callable[[], int]) -> int:
    """Runs a command line for Nagios, to which its own errors would look like warnings: a failure before or beside the
    check prints the plugin's one line, with the state unknown."""
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
