"""Plant bugs one at a time, and see whether simulations find them: ``python -m
tests.simulation.planting``.

Each patch in ``planted`` is a bug. It is applied to a copy of the package, on which seeds are
simulated until one fails, or for so many seconds of a core. If that seed fails without the bug,
too, it has not found it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.helpers.processes import ROOT
from tests.simulation.__main__ import checked, failure
from tests.simulation.known_results import KnownResults

PATCHES = sorted((ROOT / "tests" / "simulation" / "planted").glob("*.patch"))
SEARCH = "import sys; from tests.simulation.planting import search; search(float(sys.argv[1]))"


def planted(patch: Path, folder: Path) -> None:
    """Copy the package and its tests to a folder, with the bug."""
    for name in ("compss_train", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "planted")
        )
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)


def search(seconds: float) -> None:
    """Simulate seeds until one fails; print it, the seconds of the processor that it took, and the
    failure.
    """
    run = KnownResults()
    torch.set_num_threads(1)
    began = time.process_time()
    seed = 0
    while (spent := time.process_time() - began) < seconds:
        try:
            checked(seed, run)
        except BaseException as error:
            reason = (str(error).strip().splitlines() or [""])[-1]
            print(f"seed {seed}, {spent:.0f} s: {type(error).__name__} {reason[:150]}")
            return
        seed += 1
    print(f"not found in {seed} seeds, {seconds:.0f} s")


def main(seconds: float = 600.0, names: str = "") -> None:
    torch.set_num_threads(1)
    found = 0
    patches = [patch for patch in PATCHES if names in patch.name]
    for patch in patches:
        with tempfile.TemporaryDirectory() as folder:
            planted(patch, Path(folder))
            command = [sys.executable, "-c", SEARCH, str(seconds)]
            options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": folder}, "check": False}
            done = subprocess.run(command, capture_output=True, text=True, **options)
        said = done.stdout.strip() or (done.stderr.strip().splitlines() or ["it did not start"])[-1]
        if (seed := re.match(r"seed (\d+)", said)) and failure(int(seed[1])) is not None:
            said = f"not found: without the bug this fails, too: {said}"
        found += said.startswith("seed")
        print(f"{patch.stem}: {said}", flush=True)
    print(f"{found} of {len(patches)} found")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])
