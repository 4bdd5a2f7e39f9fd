"""The command ``compss-train``: parses its arguments and runs the subcommand that they name."""

from __future__ import annotations

import os
import select
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from compss_train.cli.arguments import make_parser
from compss_train.cli.run_files import exception_message

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 and the signal's number."""
NO_READER = 141
"""Exit code if nobody reads the output, as of a process ended by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name, by default those of this process, and return its exit code."""
    options = make_parser().parse_args(arguments)
    try:
        with _print_warnings(options.command):
            module = import_module(f"compss_train.cli.{options.module}")
            code = int(getattr(module, options.command)(options))
        sys.stdout.flush()
        return code
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _output_has_no_reader():
            # Python flushes the output once more at exit: it goes nowhere then.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
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
