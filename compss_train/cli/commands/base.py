"""What a subcommand of ``compss-train`` is, and kinds of arguments that several have."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A subcommand: its arguments, and what it does with them, which returns the exit code."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Called with the parsed options, among which ``parser`` is the parser of all commands."""
    examples: str = ""
    """Shown at the end of its ``--help``."""


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    listed = [name.strip() for name in text.split(",")]
    if not all(listed):
        raise argparse.ArgumentTypeError(f"give names with commas between them, not {text!r}")
    return listed


ENGINES = ("auto", "serial", "local", "compss")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run that a command is about, and which of its parameters."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run: output of compss-train fit")
    parser.add_argument("--best", action="store_true", help="the parameters of its best checkpoint (the last ones)")


def add_history(parser: argparse.ArgumentParser) -> None:
    """Add what has a history."""
    what = "the folder of a run, or a file of JSON lines: history.jsonl, or of the callback JsonLines"
    parser.add_argument("run", type=Path, metavar="RUN", help=what)


def check_folder(output: Path) -> None:
    """Raise ``FileNotFoundError`` unless the folder of a file that is to be written is there."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output}: there is no folder {output.parent}; make it, or name another file")


def add_run_settings(parser: argparse.ArgumentParser) -> None:
    """Add what changes values of a run file."""
    setting = "give a key of the file another value, written as in TOML, texts also without quotes; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings", help=setting
    )
    parser.add_argument("--workers", type=int, metavar="N", help="model copies (trainer.num_workers)")
    parser.add_argument("--engine", choices=ENGINES, help="where tasks run (trainer.engine)")
    parser.add_argument("--traceback", action="store_true", help="where something fails, print where in the code")


def settings_of(options: argparse.Namespace) -> list[str]:
    """Return what was set, each as ``SECTION.KEY=VALUE``."""
    shorthands = {"num_workers": options.workers, "engine": options.engine}
    given = [f"trainer.{key}={json.dumps(value)}" for key, value in shorthands.items() if value is not None]
    return [*options.settings, *given]
