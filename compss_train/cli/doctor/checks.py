"""The table of all checks."""

from __future__ import annotations

from compss_train.cli.doctor.compss_files import check_files, check_resources
from compss_train.cli.doctor.findings import Check, Finding, Request
from compss_train.cli.doctor.installation import check_compss_home, check_java, check_pycompss, check_runcompss
from compss_train.cli.doctor.machine import (
    check_folders,
    check_limits,
    check_optional,
    check_packages,
    check_python,
)
from compss_train.cli.doctor.nodes import check_nodes

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
    """Make all checks."""
    return [finding for check in CHECKS for finding in check(request)]
