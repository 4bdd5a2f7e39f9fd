"""Runs pytest with the instructions of an older processor: ``python -m tests.instruction_sets avx2
ARGUMENTS``.

Each library chooses its kernels when it is loaded, and a variable lowers its choice; processes that
tests start inherit them.
"""

import os
import sys

from numpy._core import _multiarray_umath as core

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
    os.execve(
        sys.executable, [sys.executable, "-m", "pytest", *arguments], {**os.environ, **variables}
    )


if __name__ == "__main__":
    main()
