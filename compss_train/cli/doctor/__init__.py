"""Check and configure what the compss engine needs, here and on the nodes, with advice for what is missing.

A check is a function of the request that yields findings. A check never raises because something is missing, never
blocks beyond a timeout, and never imports torch in this process: it is fast and works on a broken installation.
"""

import argparse

from compss_train.cli.doctor import machine, nodes
from compss_train.cli.doctor.findings import Check, Finding, Request, as_json, as_text, ready
from compss_train.engines.compss import configuration

CHECKS: tuple[Check, ...] = (
    machine.check_packages,
    machine.check_pycompss,
    machine.check_compss_home,
    machine.check_java,
    machine.check_runcompss,
    machine.check_optional,
    machine.check_limits,
    machine.check_folders,
    nodes.check_files,
    nodes.check_resources,
    nodes.check_nodes,
)


def examine(request: Request) -> list[Finding]:
    """Run all checks and return their findings."""
    return [finding for check in CHECKS for finding in check(request)]


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if anything is missing."""
    findings = examine(Request(options.project, options.resources, options.nodes, options.python))
    print(as_json(findings) if options.json else as_text(findings))
    return 0 if ready(findings) else 1


def configure(options: argparse.Namespace) -> int:
    """Write the two files and print the workers in them."""
    if options.hosts is not None:
        workers = configuration.host_nodes(
            options.hosts, options.units, options.gpus, options.first_port or configuration.FIRST_PORT
        )
    else:
        # One more range of ports, after those of the workers, for the coordinator.
        first_port = options.first_port or configuration.free_first_port(min(max(1, options.nodes), 254) + 1)
        workers = configuration.loopback_nodes(options.nodes, options.units, options.gpus, first_port)
    configuration.write(options.folder, workers, install_dir=options.install_dir, working_dir=options.working_dir)
    for node in workers:
        print(f"{node.name}: {node.cpus} CPU units, {node.gpus} GPUs, ports {node.first_port} to {node.last_port}")
    print(f"project.xml and resources.xml are in {options.folder.absolute()}")
    return 0
