"""Runs pytest with the instructions of an older processor: ``python -m tests.instruction_sets avx2
ARGUMENTS``.

Each library chooses its kernels when it is loaded, and a variable lowers its choice; processes that
tests start inherit them. What no kernel can change, ``WITHOUT_ARITHMETIC``, is left out unless
ARGUMENTS name its folder or file.
"""

import os
import sys
from pathlib import Path

from numpy._core import _multiarray_umath as core

TESTS = Path(__file__).parent
VARIABLES = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
OF_SSE = ("SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42")

WITHOUT_ARITHMETIC = (
    # Words: the package, its command and its pages, and what is said of wrong input.
    *("_utils", "cli", "docs", "reports", "sources"),
    *("test_lint_*.py", "test_nested_documents.py", "test_package.py", "test_packaging.py"),
    *("trainer/test_bad_input.py", "trainer/test_told.py"),
    *(
        f"training/test_{subject}*.py"
        for subject in ("callback", "description", "endless", "fit", "merge", "resuming_errors")
    ),
    # Tasks and processes: where they run, how they fail, and how fits stop.
    *("compss", "engines", "runcompss", "simulation"),
    *("trainer/test_faults.py", "training/test_stopping.py", "training/test_unfinished.py"),
    # Messages: who may send them, and what becomes of them, of jobs, of solvers and of studies
    # that go on.
    *("net", "parameter_server/test_forgotten.py", "parameter_server/test_served.py"),
    *(
        f"online/test_{subject}*.py"
        for subject in (
            *("arrived", "client", "coordinator", "ending", "events", "external"),
            *("fitting_faults", "fitting_jobs", "fitting_simulation", "fitting_solver"),
            *("fitting_stopping", "fitting_worker", "intake", "inputs", "job", "killed"),
            *("malformed", "odd", "options", "receive"),
            *("resuming", "roles", "routing", "sample_numbers", "sender", "simulation", "solver"),
            *("stream", "study", "worker"),
        )
    ),
    # Samples and files: they are counted, drawn, moved and read.
    *("buffers", "data/readers", "integrations/test_melissa*.py", "samplers"),
    *(
        f"data/test_{subject}*.py"
        for subject in (
            *("block", "file", "locations", "order", "partitioning", "reading", "splitting"),
            *("tables", "values"),
        )
    ),
    "training/checkpoints",
    # Callbacks, which look at rounds, and write and show them.
    *(
        f"callbacks/test_{subject}.py"
        for subject in ("checkpoint", "contract", "loggers", "progress", "ray_tune", "trackers")
    ),
)
"""Tests that check no result of floating-point kernels, in the words of ``--ignore-glob``.

Older processors round differently, which changes nothing here. These tests take more than half of
the time. A new folder or file is not in this list, and runs with all instructions.
"""


def above(level: str) -> list[str]:
    """Return the kernels that numpy has and uses on this processor, above the level; it warns of
    other names.

    Releases have other names for them: ``AVX512_SKX`` became ``X86_V4``.
    """
    used = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]
    return [
        name
        for name in used
        if (name not in OF_SSE if level == "sse" else "512" in name or "V4" in name)
    ]


def main() -> None:
    level, *arguments = sys.argv[1:]
    if level not in VARIABLES:
        raise SystemExit(f"CPU={level} is unknown; choose one of {', '.join(VARIABLES)}")
    if not core.__cpu_features__["AVX2" if level == "avx2" else "SSE42"]:
        raise SystemExit(f"CPU={level}: this processor has no such instructions")
    variables = {**VARIABLES[level], "NPY_DISABLE_CPU_FEATURES": " ".join(above(level))}
    left_out = [f"--ignore-glob={TESTS / pattern}" for pattern in WITHOUT_ARITHMETIC]
    command = [sys.executable, "-m", "pytest", *left_out, *arguments]
    os.execve(sys.executable, command, {**os.environ, **variables})


if __name__ == "__main__":
    main()
