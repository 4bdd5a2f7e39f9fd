"""Simulate so many fits, and print what each seed that fails does: ``python -m tests.simulation
SEEDS [FIRST]``.
"""

import sys
import time

import torch

from tests.simulation.engine import Fault
from tests.simulation.known_results import KnownResults
from tests.simulation.simulate import Outcome, faults_of, pasted, shrunk, simulate
from tests.simulation.world import DEATHS


def checked(seed: int, run: KnownResults) -> Outcome:
    """Simulate a seed; raise for it, and not for the next one, if its tasks had other results than
    before.
    """
    try:
        return simulate(seed, run=run)
    finally:
        run.check()


def failure(seed: int, faults: list[Fault] | None = None) -> BaseException | None:
    """Return why the simulation fails, ``None`` if it does not."""
    try:
        simulate(seed, faults)
    except (Exception, *DEATHS) as error:
        return error
    return None


def report(seed: int, error: BaseException) -> None:
    """Print a failing seed as a test, with the fewest faults; with all if it fails after others
    only.
    """
    faults = shrunk(faults_of(seed), lambda kept: failure(seed, list(kept)) is not None)
    alone = failure(seed, faults)
    print(pasted(seed, faults_of(seed) if alone is None else faults, alone or error), flush=True)


def main(count: int, first: int = 0) -> int:
    """Simulate the seeds; return how many failed."""
    torch.set_num_threads(1)
    run = KnownResults()
    began = time.process_time()
    fits = 0
    hours = 0.0
    failed = 0
    for seed in range(first, first + count):
        try:
            outcome = checked(seed, run)
        except (Exception, *DEATHS) as error:
            failed += 1
            report(seed, error)
        else:
            fits += outcome.fits
            hours += outcome.seconds / 3600
    seconds = time.process_time() - began
    print(
        f"{count} seeds from {first}, {fits} fits, {failed} failed; {60 * fits / seconds:.0f} "
        f"fits a minute of a core, {hours / seconds:.1f} virtual hours a second"
    )
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
