"""A synchronous fit that is disturbed for long ends with the bits of one that was not, on any
engine.
"""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.small_fits import contents
from tests.soak.disturbed import Disturbed
from tests.soak.fit_program import fit
from tests.training.checkpoints.trees import assert_same

FOR_EVER = 10**6
EVERY = 15.0
"""Seconds between two kills of a worker process."""
COORDINATORS = 5
"""How often the coordinator is killed."""


def disturb_fit(
    folder: Path, launch: Callable[[int], subprocess.Popen], minutes: float, megabytes: float
) -> None:
    """Disturb the fit that ``launch`` starts with a number of epochs; no coordinator may grow by so
    many megabytes.

    After the coordinator was killed for the last time, the fit goes on for a few epochs.
    """
    checkpoints = folder / "checkpoints"

    def start() -> subprocess.Popen:
        is_last = program.faults["coordinator SIGKILL"] == COORDINATORS
        return launch(max(list_checkpoints(checkpoints), default=0) + 3 if is_last else FOR_EVER)

    program = Disturbed(folder, start)
    with program:
        for _ in range(COORDINATORS):
            program.run(
                60 * minutes / COORDINATORS,
                (EVERY, lambda: program.kill("workers")),
                # Which worker_timeout ends.
                (3.3 * EVERY, lambda: program.kill("workers", signal.SIGSTOP)),
            )
            program.kill_coordinator()
        assert program.end() == 0
    rounds = max(list_checkpoints(checkpoints)) + 1
    program.report(rounds=rounds)
    program.check_flat(megabytes)
    assert rounds > COORDINATORS + 3, "there was hardly a fit to disturb"
    fit(folder / "whole", "serial", rounds, seconds=0)
    ours = contents(checkpoints)
    theirs = contents(folder / "whole" / "checkpoints")
    assert_same(ours[rounds - 1], theirs[rounds - 1])
