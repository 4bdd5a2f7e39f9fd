"""The class ``Command``, and arguments that several commands share."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ENGINES = ("auto", "serial", "local", "compss")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand of ``compss-train``.

    ``run`` takes the parsed options, among them ``parser``, the parser of all commands, and returns the exit code.
    ``examples`` are printed at the end of its ``--help``.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: str = ""


def comma_separated(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"give names separated by commas, not {text!r}")
    return names


def check_parent_folder(output: Path) -> None:
    """Raise ``FileNotFoundError`` unless the folder of an output file exists."""
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"{output}: the folder {output.parent} does not exist; create it, or name another file"
        )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command uses, and the choice of its parameters."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run: output of compss-train fit")
    parser.add_argument("--best", action="store_true", help="use its best checkpoint (default: final parameters)")
    trust = "import the modules that the run's file names without saying so, also if it belongs to another user"
    parser.add_argument("--trust", action="store_true", help=trust)


AXES = ("round", "epoch", "samples", "seconds")


def add_history_arguments(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the histories that a command uses, and the file that it writes, which ``output`` describes."""
    text = "folder of a run, or a file of JSON lines: history.jsonl, or one of the callback JsonLines"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=text)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=output)


def add_axis_argument(parser: argparse.ArgumentParser) -> None:
    """Add the horizontal axis of curves."""
    axis = "the horizontal axis of curves (default: round)"
    parser.add_argument("--against", choices=AXES, default=AXES[0], help=axis)


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments that change values of a run file."""
    text = "set a key of the file, the value as in TOML, strings also without quotes; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings", help=text
    )
    parser.add_argument("--workers", type=int, metavar="N", help="model copies (trainer.num_workers)")
    parser.add_argument("--engine", choices=ENGINES, help="where tasks run (trainer.engine)")
    parser.add_argument("--traceback", action="store_true", help="print the traceback of an error")


def get_settings(options: argparse.Namespace) -> list[str]:
    """Return the changed values, each as ``SECTION.KEY=VALUE``."""
    shorthands = {"num_workers": options.workers, "engine": options.engine}
    settings = [f"trainer.{key}={json.dumps(value)}" for key, value in shorthands.items() if value is not None]
    return [*options.settings, *settings]
