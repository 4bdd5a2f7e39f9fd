"""A run with the instructions of an older processor has them, in this process and in those that it
starts.
"""

import os

import pytest
import torch
from threadpoolctl import threadpool_info

from tests.instruction_sets import TESTS, VARIABLES, WITHOUT_ARITHMETIC, above

(LEVEL,) = [
    level for level, variables in VARIABLES.items() if variables.items() <= os.environ.items()
] or [None]
OPENBLAS = os.environ.get("OPENBLAS_CORETYPE")


def in_use():
    """Return PyTorch's kernels, the kernels of numpy above the level, and cores of OpenBLAS that
    were not set.
    """
    cores = {
        library["architecture"]
        for library in threadpool_info()
        if library["internal_api"] == "openblas"
    }
    return torch.backends.cpu.get_cpu_capability().lower(), above(LEVEL), cores - {OPENBLAS}


@pytest.mark.skipif(LEVEL is None, reason="make test CPU=... runs it")
def test_libraries_use_no_newer_instructions(shared_local):
    expected = VARIABLES[LEVEL]["ATEN_CPU_CAPABILITY"], [], set()
    assert in_use() == expected
    assert shared_local.fetch([shared_local.submit(in_use)]) == [expected]


@pytest.mark.parametrize("pattern", WITHOUT_ARITHMETIC)
def test_what_is_left_out_is_there(pattern):
    assert list(TESTS.glob(pattern))
