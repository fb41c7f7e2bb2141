"""`remat`: finds the verbs, and turns every way to end into an exit code.

A verb is a file in this folder that defines `command`; a new file is a new verb. Nothing heavy
is imported here or at the top of a verb, so that `remat --help` answers at once.
"""

import contextlib
import importlib
import os
import pkgutil
import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

import remat
import remat.cli
from remat.cli.options import verbose_option, wants_traceback
from remat.errors import ExitCode, InternalError, RematError, UsageError

_HELPERS = frozenset({"main", "options", "progress"})
# 128 + the signal's number, as a shell reports a process that the signal ended.
INTERRUPTED = 130
PIPE_CLOSED = 141
HUNG_UP = 129
TERMINATED = 143


class Terminated(BaseException):
    """Somebody asked the process to end: unlike Ctrl-C, at once and without an answer."""

    def __init__(self, number: int) -> None:
        super().__init__("hung up" if number == signal.SIGHUP else "terminated")
        self.number = number


class Verbs(click.Group):
    """The group of all verbs, each imported when first asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs' names, sorted."""
        modules = pkgutil.iter_modules(remat.cli.__path__)
        return sorted(module.name for module in modules if module.name not in _HELPERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name; None if there is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = importlib.import_module(f"remat.cli.{cmd_name}").command
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; mistakes are shown as all others are."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _show_misspelt(error)
            ctx.exit(ExitCode.USAGE)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what it raises is shown on stderr and becomes the exit code."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _show_misspelt(error)
            ctx.exit(ExitCode.USAGE)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except RematError as error:
            _show_traceback_if_wanted(ctx)
            click.echo(error.render(), err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _write_no_more()
            ctx.exit(PIPE_CLOSED)
        except (OSError, MemoryError) as error:
            _show_traceback_if_wanted(ctx)
            click.echo(_refused(error).render(), err=True)
            ctx.exit(ExitCode.USAGE)
        except Exception as error:  # noqa: BLE001 - the outermost handler: a bug must end in one line, too
            _show_traceback_if_wanted(ctx)
            click.echo(_our_fault(error).render(), err=True)
            ctx.exit(ExitCode.INTERNAL)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(remat.__version__, prog_name="remat", message="%(prog)s %(version)s")
@verbose_option
def group() -> None:
    """Make an ONNX model run in ONNX Runtime within a memory limit.

    Values are computed again instead of kept wherever that costs least time, and both the
    memory and the outputs are measured before the result is called done.
    """


def main() -> None:
    """Entry point of the `remat` script."""
    signal.signal(signal.SIGTERM, _terminate)
    # A terminal that goes away asks for the same, unless it was told not to (nohup).
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminate)
    try:
        group.main(prog_name="remat")
    except Terminated as ended:
        with contextlib.suppress(OSError):
            click.echo(ended, err=True)
        sys.exit(HUNG_UP if ended.number == signal.SIGHUP else TERMINATED)


def _terminate(number: int, _frame: FrameType | None) -> None:
    # Another one must not break off what the first one's way out cleans up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise Terminated(number)


def _show_misspelt(error: click.UsageError) -> None:
    # What a command without arguments shows is its help.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        raise error
    fact = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx else "remat"
    refused = UsageError("R217", fact[:1].lower() + fact[1:], fix=f"see {path} --help")
    click.echo(refused.render(), err=True)


def _refused(error: OSError | MemoryError) -> UsageError:
    """The system has no room, or no leave, for what was asked for."""
    if isinstance(error, MemoryError):
        what = " ".join(str(error).split())
        fact = "this machine has too little memory" + (f": {what}" if what else "")
        return UsageError("R215", fact, fix="use smaller inputs: --dim, --inputs")
    place = "" if error.filename is None else str(error.filename)
    return UsageError("R214", f"the system refuses: {error.strerror or error}", place=place)


def _our_fault(error: Exception) -> InternalError:
    what = " ".join(str(error).split())
    fact = f"internal error: {type(error).__name__}" + (f": {what}" if what else "")
    fix = "this is a bug in remat; see the traceback with -v or REMAT_TRACEBACK=1, and report it"
    return InternalError("R900", fact, fix=fix)


def _show_traceback_if_wanted(ctx: click.Context) -> None:
    if wants_traceback(ctx):
        click.echo(traceback.format_exc(), err=True, nl=False)


def _write_no_more() -> None:
    # The interpreter flushes stdout when it ends, and would complain once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
