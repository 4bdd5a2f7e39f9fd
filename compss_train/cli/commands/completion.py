"""``compss-train completion``: what makes a shell complete commands, options and names of files."""

from __future__ import annotations

import argparse
from typing import Any

from compss_train._utils.optional_imports import import_optional
from compss_train.cli.commands.base import Command

SHELLS = ("bash", "zsh", "tcsh")
FILES = ("FILE", "RUN", "INPUT")
FOLDERS = ("FOLDER",)
"""What stands in ``--help`` for arguments that are names of files and folders."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to write it for")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    shtab = import_optional("shtab", extra="completion", needed_by="completion")
    _mark_files(options.parser, shtab)
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Have names of files and folders completed, in all subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _mark_files(subparser, shtab)
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


COMMAND = Command(
    "completion",
    "print a script that lets the shell complete this command",
    add_arguments,
    run,
    examples="""\
  bash:  compss-train completion bash > ~/.local/share/bash-completion/completions/compss-train
  zsh:   compss-train completion zsh > ~/.zsh/completions/_compss-train    (a folder in $fpath)
  tcsh:  compss-train completion tcsh > ~/.compss-train.csh; echo source ~/.compss-train.csh >> ~/.tcshrc""",
)
