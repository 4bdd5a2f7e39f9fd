"""``compss-train configure``: files that tell COMPSs its workers. Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command, names
from compss_train.engines.compss import configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=int, default=1, help="workers on this machine, by loopback addresses (1)")
    where.add_argument("--hosts", type=names, metavar="HOST,...", help="one worker on each of these machines")
    parser.add_argument("--units", type=int, help="CPU units of a worker (its share of the physical cores)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker (0)")
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER", default=Path(), help="where the two files go (here)"
    )
    parser.add_argument(
        "--install-dir", type=Path, metavar="FOLDER", help="where COMPSs is on the workers (as here)"
    )
    parser.add_argument(
        "--working-dir", type=Path, metavar="FOLDER", help="where workers keep files (a folder of yours in /tmp)"
    )
    parser.add_argument("--first-port", type=int, help="of the first worker (here: free ones; hosts: 44001)")


def run(options: argparse.Namespace) -> int:
    """Write the two files and print what is in them."""
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


COMMAND = Command(
    "configure",
    "write project.xml and resources.xml for runcompss: workers, their units, GPUs and ports",
    add_arguments,
    run,
)
