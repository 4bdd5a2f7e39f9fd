"""What do the losses of samples, which samplers of inputs ask for, cost a fit?

The program is ``apps/active_surrogate.py``: samples per second of one worker that trains on a full
buffer, with losses by sample and without.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _common as common

from compss_train import BufferSpec, DistributedTrainer, InputSampler, Merge, Simulations

sys.path.append(str(Path(__file__).resolve().parents[1] / "apps"))
import active_surrogate as app  # type: ignore[import-not-found]

FEW = 20
"""Simulations of a fit."""


class Numbers(InputSampler):
    """The numbers of some simulations, with the losses of samples or without."""

    def __init__(self, *, needs_losses: bool) -> None:
        self.needs_losses = needs_losses

    def next(self, table: Any) -> int | None:
        """Return the next number."""
        return len(table) if len(table) < FEW else None

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def lasting(problem: app.Problem, seconds: float, number: int) -> Iterator[Any]:
    """Yield the samples of a simulation.

    The last simulation ends after so many seconds, in which samples are repeated.
    """
    inputs = list(app.inputs("uniform", problem, FEW, 0))
    yield from app.samples(problem, inputs[number])
    if number == FEW - 1:
        time.sleep(seconds)


def rate(name: str, seconds: float, _: int, *, needs_losses: bool) -> float:
    """Return samples per second, from the first record of a fit to the last one."""
    problem = app.PROBLEMS[name]
    with DistributedTrainer(1, engine="local", seed=0, threads=1) as trainer:
        trainer.build(app.network(problem, 0), {"optimizer": "adam", "lr": 0.001}, "mse")
        trainer.fit_online(
            Simulations(partial(lasting, problem, seconds), Numbers(needs_losses=needs_losses)),
            buffer=BufferSpec("Reservoir", FEW * app.STEPS, threshold=FEW * app.STEPS),
            batch_size=app.BATCH,
            merge=Merge(every=50),
            record_every=0.2,
            progress=False,
        )
        first, *later = [record for record in trainer.history if record["samples"]]
        samples = sum(record["samples"] for record in later)
        return float(samples / (later[-1]["ended"] - first["ended"]))


def main() -> None:
    options = common.parsed(common.parser(__doc__, repetitions=5))
    seconds = 2 if options.quick else 8
    without = "losses by sample: False"
    rates = {
        without: partial(rate, "ks", seconds, needs_losses=False),
        "losses by sample: True": partial(rate, "ks", seconds, needs_losses=True),
    }
    measured = common.in_turn(rates, 2 * options.repetitions)
    common.print_rates("Samples per second, one worker", measured, without)


if __name__ == "__main__":
    main()
