"""The command ``compss-train``: parses its arguments and runs the subcommand that they name."""

from __future__ import annotations

import argparse
import os
import select
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from compss_train._utils.version import __version__
from compss_train.cli.commands import COMMANDS, Command
from compss_train.cli.run_files.errors import exception_message

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 and the signal's number."""
NO_READER = 141
"""Exit code if nobody reads the output, as of a process ended by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name, by default those of this process, and return its exit code."""
    options = make_parser().parse_args(arguments)
    try:
        with _print_warnings(options.command):
            code = int(options.run_command(options))
        sys.stdout.flush()
        return code
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _output_has_no_reader():
            _discard_output()
            return NO_READER
        if getattr(options, "traceback", False):
            traceback.print_exc()
        print(f"compss-train {options.command}: {exception_message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"compss-train {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _output_has_no_reader() -> bool:
    """Return whether standard output is a pipe that ``head`` or another reader has closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard_output() -> None:
    """Send standard output nowhere: Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def _print_warnings(command: str) -> Iterator[None]:
    """Print warnings in the same format as the command's other messages, without their place in the code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"compss-train {command}: {message}", file=sys.stderr)

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands; parsed options hold it as ``parser``."""
    parser = argparse.ArgumentParser(
        prog="compss-train",
        description="Train PyTorch models with many workers, on this machine or on a COMPSs cluster.",
        epilog="compss-train COMMAND --help describes a command. To start: compss-train fit --example",
    )
    parser.add_argument("--version", action="version", version=f"compss_train {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add_command(subparsers, command)
    parser.set_defaults(parser=parser)
    return parser


def _add_command(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], command: Command) -> None:
    parser = subparsers.add_parser(
        command.name,
        help=command.help,
        description=textwrap.fill(f"{command.help[0].upper()}{command.help[1:]}."),
        epilog=command.examples and f"examples:\n{command.examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parser.set_defaults(run_command=command.run)
