"""What a subcommand of ``compss-train`` is, and kinds of arguments that several have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A subcommand: its arguments, and what it does with them, which returns the exit code."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: str = ""
    """Shown at the end of its ``--help``."""


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    listed = [name.strip() for name in text.split(",")]
    if not all(listed):
        raise argparse.ArgumentTypeError(f"give names with commas between them, not {text!r}")
    return listed
