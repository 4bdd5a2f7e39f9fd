"""``compss-train completion``: scripts that complete commands, options and file names in a shell."""

import argparse
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.cli.commands.base import Command

SHELLS = ("bash", "zsh", "tcsh")
FILES = ("FILE", "RUN", "INPUT")
FOLDERS = ("FOLDER",)
"""Metavars of arguments that are names of files and folders."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that runs the script")


def _run(options: argparse.Namespace) -> int:
    """Print the script."""
    shtab = import_optional("shtab", extra="completion", needed_by="completion")
    _mark_files(options.parser, shtab)
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Mark the arguments of all subcommands that are names of files or folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _mark_files(subparser, shtab)
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


COMPLETION = Command(
    name="completion",
    help="print a script that lets the shell complete this command",
    add_arguments=_add_arguments,
    run=_run,
    examples="""\
  bash:  compss-train completion bash > ~/.local/share/bash-completion/completions/compss-train
  zsh:   compss-train completion zsh > ~/.zsh/completions/_compss-train    (a folder in $fpath)
  tcsh:  compss-train completion tcsh > ~/.compss-train.csh; echo source ~/.compss-train.csh >> ~/.tcshrc""",
)
