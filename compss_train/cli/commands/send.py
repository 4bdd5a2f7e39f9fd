"""``compss-train send``: samples from a pipe into a ``fit_online``."""

from __future__ import annotations

import argparse
import os
import sys

from compss_train.cli.commands.base import Command

TOKEN_VARIABLE = "COMPSS_TRAIN_TOKEN"
"""Environment variable for a token, which others can read on a command line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("address", help="address= of fit_online, tcp://HOST:PORT")
    parser.add_argument("--x", required=True, metavar="SHAPE", help="shape of a sample's x, such as 6 or 3x64x64")
    parser.add_argument("--y", metavar="SHAPE", help="shape of its y (none)")
    dtypes = ("float32", "float64", "int32", "int64", "uint8")
    parser.add_argument(
        "--dtype", choices=dtypes, default=dtypes[0], help="of both, in this machine's order (float32)"
    )
    parser.add_argument("--steps", action="store_true", help="each record begins with its time step, an int64")
    parser.add_argument("--name", help="of this stream: what has arrived under it before is not sent again")
    parser.add_argument("--token", help=f"token= of fit_online (the environment variable {TOKEN_VARIABLE})")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the fit to begin (60)")


def run(options: argparse.Namespace) -> int:
    """Send what comes from standard input until it ends, or training does."""
    from compss_train.online.raw import send  # it needs torch, which other commands do without

    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ValueError(f"there is no token: give --token or set {TOKEN_VARIABLE}")
    print(send(options, token, sys.stdin.buffer), file=sys.stderr)
    return 0


COMMAND = Command(
    "send",
    "send samples that a solver writes to standard output into a fit_online, from a pipe",
    add_arguments,
    run,
)
