"""Check what the compss engine needs, on this machine and on the nodes, with advice for what is missing.

A check is a function of the request that yields findings. A check never raises because something is missing, never
blocks beyond a timeout, and never imports torch in this process: it is fast and works on a broken installation.
"""

from compss_train.cli.doctor import compss_files, machine, nodes
from compss_train.cli.doctor.findings import Check, Finding, Request, State, as_json, as_text, ready

__all__ = ["CHECKS", "Check", "Finding", "Request", "State", "as_json", "as_text", "examine", "ready"]

CHECKS: tuple[Check, ...] = (
    machine.check_python,
    machine.check_packages,
    machine.check_pycompss,
    machine.check_compss_home,
    machine.check_java,
    machine.check_runcompss,
    machine.check_optional,
    machine.check_limits,
    machine.check_folders,
    compss_files.check_files,
    compss_files.check_resources,
    nodes.check_nodes,
)


def examine(request: Request) -> list[Finding]:
    """Run all checks and return their findings."""
    return [finding for check in CHECKS for finding in check(request)]
