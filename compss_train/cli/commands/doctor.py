"""``compss-train doctor``: what is missing for the compss engine. Needs no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compss_train.cli import doctor
from compss_train.cli.commands.base import Command, names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--project", type=Path, metavar="FILE", help="the project.xml that runcompss will be given")
    parser.add_argument(
        "--resources", type=Path, metavar="FILE", help="the resources.xml that runcompss will be given"
    )
    parser.add_argument(
        "--nodes",
        type=names,
        default=(),
        metavar="HOST,...",
        help="hosts to look at (those of --project)",
    )
    parser.add_argument(
        "--python", metavar="FILE", default=sys.executable, help="the Python of the nodes (this one)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(options: argparse.Namespace) -> int:
    """Print what was found; return 1 where something is missing."""
    findings = doctor.examine(
        doctor.Request(options.project, options.resources, tuple(options.nodes), options.python)
    )
    print(doctor.as_json(findings) if options.json else doctor.as_text(findings))
    return 0 if doctor.ready(findings) else 1


COMMAND = Command(
    "doctor",
    "look for what the compss engine needs, here and on the nodes, and say how to get what is missing",
    add_arguments,
    run,
)
