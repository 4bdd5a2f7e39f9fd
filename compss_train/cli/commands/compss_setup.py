"""``compss-train doctor`` and ``configure``: check and configure what COMPSs needs. Neither imports torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compss_train.cli.commands.base import Command, comma_separated

if TYPE_CHECKING:
    from compss_train.engines.compss.worker_nodes import WorkerNode


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", type=Path, metavar="FILE", help="the project.xml for runcompss")
    parser.add_argument("--resources", type=Path, metavar="FILE", help="the resources.xml for runcompss")
    nodes = "hosts to check (default: those of --project)"
    parser.add_argument("--nodes", type=comma_separated, default=(), metavar="HOST,...", help=nodes)
    python = "the Python of the nodes (default: this one)"
    parser.add_argument("--python", metavar="FILE", default=sys.executable, help=python)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run_doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if anything is missing."""
    from compss_train.cli import doctor

    request = doctor.Request(options.project, options.resources, tuple(options.nodes), options.python)
    findings = doctor.examine(request)
    print(doctor.as_json(findings) if options.json else doctor.as_text(findings))
    return 0 if doctor.ready(findings) else 1


def _add_configure_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    nodes = "workers on this machine, on loopback addresses (default: 1)"
    where.add_argument("--nodes", type=int, default=1, help=nodes)
    hosts = "one worker on each of these machines"
    where.add_argument("--hosts", type=comma_separated, metavar="HOST,...", help=hosts)
    units = "CPU units of a worker (default: its share of the physical cores)"
    parser.add_argument("--units", type=int, help=units)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker (default: 0)")
    folder = "folder of the two files (default: the current one)"
    parser.add_argument("--folder", type=Path, metavar="FOLDER", default=Path(), help=folder)
    install = "installation folder of COMPSs on the workers (default: as on this machine)"
    parser.add_argument("--install-dir", type=Path, metavar="FOLDER", help=install)
    working = "working folder of the workers (default: a folder of your own in /tmp)"
    parser.add_argument("--working-dir", type=Path, metavar="FOLDER", help=working)
    port = "first port of the first worker (default: free ports here, 44001 on --hosts)"
    parser.add_argument("--first-port", type=int, help=port)


def _run_configure(options: argparse.Namespace) -> int:
    """Write the two files and print the workers in them."""
    from compss_train.engines.compss.configuration import write

    nodes = _make_nodes(options)
    write(options.folder, nodes, install_dir=options.install_dir, working_dir=options.working_dir)
    for node in nodes:
        print(f"{node.name}: {node.cpus} CPU units, {node.gpus} GPUs, ports {node.first_port} to {node.last_port}")
    print(f"project.xml and resources.xml are in {options.folder.absolute()}")
    return 0


def _make_nodes(options: argparse.Namespace) -> tuple[WorkerNode, ...]:
    from compss_train.engines.compss.worker_nodes import (
        FIRST_PORT,
        free_first_port,
        host_nodes,
        loopback_nodes,
    )

    if options.hosts is not None:
        return host_nodes(options.hosts, options.units, options.gpus, options.first_port or FIRST_PORT)
    # One more range of ports, after those of the workers, for the coordinator.
    first_port = options.first_port or free_first_port(min(max(1, options.nodes), 254) + 1)
    return loopback_nodes(options.nodes, options.units, options.gpus, first_port)


DOCTOR = Command(
    name="doctor",
    help="check what the compss engine needs, here and on the nodes, with advice for what is missing",
    add_arguments=_add_doctor_arguments,
    run=_run_doctor,
)
CONFIGURE = Command(
    name="configure",
    help="write project.xml and resources.xml for runcompss: workers, their units, GPUs and ports",
    add_arguments=_add_configure_arguments,
    run=_run_configure,
)
