"""``compss-train send`` and ``headers``: what solvers in other languages need."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from compss_train.online.job_variables import ADDRESS_VARIABLE, NAME_VARIABLE, TOKEN_VARIABLE

HEADERS = Path(__file__).parents[1] / "online" / "headers"
"""The folder of ``compss_train.h`` and what else solvers need."""
PYTHON = Path(__file__).parents[1] / "integrations" / "melissa_solver"
"""The folder of ``melissa_api.py``."""
LIBRARIES = ("libcompss_train.a", "libmelissa.a", "libmelissa_api.a")
"""What ``headers --build`` makes: the same under the names that link lines have."""


def send(options: argparse.Namespace) -> int:
    """Send samples from standard input or a solver's output, until it or training ends.

    Raises ``ValueError`` for another number of samples than ``options.samples``, and
    ``ChildProcessError`` if the solver fails.
    """
    from compss_train.online.raw_records import send_records  # which needs pyzmq

    # The solver does not get it.
    variable = os.environ.pop(TOKEN_VARIABLE, None)
    token = options.token or variable
    if not token:
        raise ValueError(f"the token is missing: give --token or set {TOKEN_VARIABLE}")
    if options.address is None:
        options.address = os.environ.get(ADDRESS_VARIABLE)
        options.name = options.name or os.environ.get(NAME_VARIABLE)
    if options.address is None:
        raise ValueError(f"the address is missing: give it, or set {ADDRESS_VARIABLE}")
    print(send_records(options, token, sys.stdin.buffer), file=sys.stderr)
    return 0


def headers(options: argparse.Namespace) -> int:
    """Print the folder of the headers, or of ``melissa_api.py``; or build the libraries.

    Raises ``FileNotFoundError`` without a compiler, and ``ChildProcessError`` with the compiler's
    words if it fails.
    """
    if options.build is None:
        print(PYTHON if options.python else HEADERS)
        return 0
    compiler = options.compiler or shutil.which("mpicc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError(
            "there is neither mpicc nor cc in PATH; name a C compiler with --compiler"
        )
    options.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        compiled = f"{temporary}/compss_train.o"
        archive = f"{temporary}/{LIBRARIES[0]}"
        _run(compiler, "-O2", "-fPIC", "-c", f"{HEADERS}/libcompss_train.c", "-o", compiled)
        _run("ar", "rcs", archive, compiled)
        for name in LIBRARIES:
            shutil.copyfile(archive, options.build / name)
            print(options.build / name)
    return 0


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ChildProcessError(
            f"{' '.join(command)} ended with status {result.returncode}: {result.stderr.strip()}"
        )
