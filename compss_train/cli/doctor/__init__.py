"""Check what the compss engine needs, on this machine and on the nodes, with advice for what is missing.

A check is a function of the request that yields findings. A check never raises because something is missing, never
blocks beyond a timeout, and never imports torch in this process: it is fast and works on a broken installation.
"""

from __future__ import annotations

from compss_train.cli.doctor.compss_files import check_files, check_resources
from compss_train.cli.doctor.findings import Check, Finding, Request, State, as_json, as_text, ready
from compss_train.cli.doctor.machine import (
    check_compss_home,
    check_folders,
    check_java,
    check_limits,
    check_optional,
    check_packages,
    check_pycompss,
    check_python,
    check_runcompss,
)
from compss_train.cli.doctor.nodes import check_nodes

__all__ = ["CHECKS", "Check", "Finding", "Request", "State", "as_json", "as_text", "examine", "ready"]

CHECKS: tuple[Check, ...] = (
    check_python,
    check_packages,
    check_pycompss,
    check_compss_home,
    check_java,
    check_runcompss,
    check_optional,
    check_limits,
    check_folders,
    check_files,
    check_resources,
    check_nodes,
)


def examine(request: Request) -> list[Finding]:
    """Run all checks and return their findings."""
    return [finding for check in CHECKS for finding in check(request)]
