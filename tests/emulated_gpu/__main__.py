"""Runs pytest on a real GPU if there is one, else on two emulated ones: by default all tests of
GPUs.
"""

import os
import sys
from pathlib import Path

from tests.emulated_gpu import library

ROOT = Path(__file__).parents[2]


def main() -> None:
    command = [sys.executable, "-m", "pytest", *(sys.argv[1:] or ["tests/gpu"])]
    environment = dict(os.environ)
    if not any(Path("/dev").glob("nvidia[0-9]*")) and library.why_not() is None:
        environment["EMULATED_GPUS"] = "2"
        folders = [str(ROOT / "tests/emulated_gpu/site"), environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
