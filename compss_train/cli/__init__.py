"""The command ``compss-train``: parses its arguments and runs the subcommand that they name."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from compss_train.cli.arguments import make_parser
from compss_train.cli.run_files import exception_message
from compss_train.reports.formatting import printable

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 and the signal's number."""
NO_READER = 141
"""Exit code if the reader of the output has gone, as for a process ended by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name, and return its exit code.

    By default they are those of this process.
    """
    texts = sys.argv[1:] if arguments is None else list(arguments)
    if texts[:1] == ["send"] and "--" in texts:  # a command with options of its own follows
        separator = texts.index("--")
        options = make_parser().parse_args(texts[:separator])
        options.solver = texts[separator + 1 :]
    else:
        options = make_parser().parse_args(texts)

    def show(message: object, *_: Any, **__: Any) -> None:
        """Print a message of the command, or a warning without its place in the code."""
        print(f"compss-train {options.command}: {printable(str(message))}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            module = import_module(f"compss_train.cli.{options.module}")
            code = int(getattr(module, options.command)(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # ``head`` or another reader has closed the pipe
        # Python flushes the output once more at exit: it goes nowhere then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except (ValueError, TypeError, OverflowError, ModuleNotFoundError, OSError) as error:
        if getattr(options, "traceback", False):
            traceback.print_exc()
        show(exception_message(error))
        return 2
    except KeyboardInterrupt:
        show("interrupted")
        return INTERRUPTED
