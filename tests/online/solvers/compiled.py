"""The solvers of this folder, compiled once a run of the tests; tests are skipped where there is no
compiler.
"""

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from compss_train import Solver
from compss_train.cli.solvers import HEADERS
from tests.helpers.processes import children

SOURCES = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-ffp-contract=off", "-O1", f"-I{HEADERS}")
"""Warnings are errors; products are not fused with sums, so that all languages give the bits of
numpy.
"""
STANDARDS = {
    "gcc": ("-std=c99",),
    "mpicc": ("-std=c99",),
    "g++": ("-std=c++11",),
    "mpicxx": ("-std=c++11", "-DOMPI_SKIP_MPICXX"),
    "gfortran": ("-J.",),
    "mpif90": ("-J.", "-Wno-unused-parameter"),  # of mpif.h
}
PACKAGES = {
    **{name: name for name in ("gcc", "g++", "gfortran")},
    **dict.fromkeys(("mpicc", "mpicxx", "mpif90"), "libopenmpi-dev"),
    "mpirun": "openmpi-bin",
    "mpiexec.hydra": "mpich",
}
"""The packages of Debian with these programs."""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="solvers-")


def needs(program):
    """Skip this test unless the program is there."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing (Debian: {PACKAGES[program]})")


@cache
def compiled(compiler, *sources, flags=()):
    """Compile sources of this folder, or of the headers; return the program."""
    needs(compiler)
    place = Path(_folder().name)
    program = place / re.sub(r"\W", "-", " ".join([compiler, *sources, *flags]))
    paths = [
        str(SOURCES / name if (SOURCES / name).exists() else Path(HEADERS, name))
        for name in sources
    ]
    command = [compiler, *STRICT, *STANDARDS[compiler], "-o", str(program), *paths, *flags, "-lm"]
    subprocess.run(command, check=True, cwd=place)
    return str(program)


def mpirun(ranks, program):
    """Return the command that runs a program with so many ranks."""
    needs("mpirun")
    return ["mpirun", "--oversubscribe", "-n", str(ranks), program]


def solver(
    command, sample=lambda value, step, fields: (step, dict(fields)), environment=None, **options
):
    """Return a solver; root may start ranks of MPI."""
    return Solver(command, sample, environment={**AS_ROOT, **(environment or {})}, **options)


def solvers_running():
    """Return the processes of faulty solvers below this one, with those that started them."""
    return children("faulty")


def heat(value, steps, cells):
    """Return the temperature and the flux that the heat solvers send at each time step."""
    u = np.zeros(cells + 2)
    sent = []
    u[0] = value
    for _ in range(steps):
        flux = u[:-2] - u[1:-1]
        u[1:-1] += 0.25 * ((u[:-2] - 2 * u[1:-1]) + u[2:])
        sent.append((u[1:-1].copy(), flux[:cells]))
    return sent
