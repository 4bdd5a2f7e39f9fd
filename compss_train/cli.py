"""The command ``compss-train``: a table of subcommands, and what reads their arguments."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compss_train import __version__, configuration, doctor

TOKEN_VARIABLE = "COMPSS_TRAIN_TOKEN"
"""Environment variable for a token, which others can read on a command line."""


@dataclass(frozen=True)
class Command:
    """A subcommand: its arguments, and what it does with them, which returns the exit code."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name (by default those of this process); return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
        print(f"compss-train {options.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compss-train", description="Tools around compss_train and COMPSs.")
    parser.add_argument("--version", action="version", version=f"compss_train {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", type=Path, help="the project.xml that runcompss will be given")
    parser.add_argument("--resources", type=Path, help="the resources.xml that runcompss will be given")
    parser.add_argument(
        "--nodes",
        type=_names,
        default=(),
        metavar="HOST,...",
        help="hosts to look at (those of --project)",
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of the nodes (this one)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def _run_doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine(
        doctor.Request(options.project, options.resources, tuple(options.nodes), options.python)
    )
    print(doctor.as_json(findings) if options.json else doctor.as_text(findings))
    return 0 if doctor.ready(findings) else 1


def _configure_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=int, default=1, help="workers on this machine, by loopback addresses (1)")
    where.add_argument("--hosts", type=_names, metavar="HOST,...", help="one worker on each of these machines")
    parser.add_argument("--units", type=int, help="CPU units of a worker (its share of the physical cores)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker (0)")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the two files go (here)")
    parser.add_argument("--install-dir", type=Path, help="where COMPSs is on the workers (as here)")
    parser.add_argument("--working-dir", type=Path, help="where workers keep files (a folder of yours in /tmp)")
    parser.add_argument("--first-port", type=int, help="of the first worker (here: free ones; hosts: 44001)")


def _run_configure(options: argparse.Namespace) -> int:
    nodes = _nodes(options)
    configuration.write(options.folder, nodes, install_dir=options.install_dir, working_dir=options.working_dir)
    for node in nodes:
        print(f"{node.name}: {node.units} CPU units, {node.gpus} GPUs, ports {node.first_port} to {node.last_port}")
    print(f"project.xml and resources.xml are in {options.folder.absolute()}")
    return 0


def _nodes(options: argparse.Namespace) -> tuple[configuration.Node, ...]:
    if options.hosts is not None:
        first_port = options.first_port or configuration.FIRST_PORT
        return configuration.host_nodes(options.hosts, options.units, options.gpus, first_port)
    # The coordinator may have what follows the workers' ports.
    first_port = options.first_port or configuration.free_first_port(min(max(1, options.nodes), 254) + 1)
    return configuration.loopback_nodes(options.nodes, options.units, options.gpus, first_port)


def _names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"give names with commas between them, not {text!r}")
    return names


def _shard_arguments(parser: argparse.ArgumentParser) -> None:
    text = "files of one kind (.npz, .npy, .pt, .h5) or patterns of them in quotes, or NAME=FILE.npy for each array"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=text)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--rows", type=int, required=True, help="samples of a file")
    formats = ("npz", "npz-compressed", "npy", "pt", "h5")
    parser.add_argument("--format", choices=formats, default=formats[0], help="of the files (npz)")
    pool = "mix the samples on the way, in two pools of so many (as they are)"
    parser.add_argument("--shuffle-buffer", type=int, metavar="SAMPLES", help=pool)
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are mixed (0)")


def _run_shard(options: argparse.Namespace) -> int:
    from compss_train.sharding import shard  # it needs torch, which this command does without

    names = shard(
        options.inputs, options.output, options.rows, options.format, options.shuffle_buffer, options.seed
    )
    print(f"{len(names)} files in {options.output.absolute()}")
    return 0


def _send_arguments(parser: argparse.ArgumentParser) -> None:
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


def _run_send(options: argparse.Namespace) -> int:
    from compss_train.online.command import send  # it needs torch, which this command does without

    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ValueError(f"there is no token: give --token or set {TOKEN_VARIABLE}")
    print(send(options, token, sys.stdin.buffer), file=sys.stderr)
    return 0


COMMANDS = (
    Command(
        "doctor",
        "look for what the compss engine needs, here and on the nodes, and say how to get what is missing",
        _doctor_arguments,
        _run_doctor,
    ),
    Command(
        "configure",
        "write project.xml and resources.xml for runcompss: workers, their units, GPUs and ports",
        _configure_arguments,
        _run_configure,
    ),
    Command(
        "shard",
        "write arrays, or files of one size, as files of another size or format, from which workers train",
        _shard_arguments,
        _run_shard,
    ),
    Command(
        "send",
        "send samples that a solver writes to standard output into a fit_online, from a pipe",
        _send_arguments,
        _run_send,
    ),
)
