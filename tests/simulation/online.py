"""Simulated online fits: samples travel over connections that break, to workers and from simulations that die."""

import random
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from compss_train import BufferSpec, SimulationError, WorkerLostError
from compss_train.engines.simulated import Fault, FaultPlan, SimulatedEngine
from tests.online.fits import run_fit, split_range
from tests.online.simulations import CountingNet, OneHotSimulation, sample_counts
from tests.simulation.fibers import FiberEvents
from tests.simulation.laws import Violation, check_engine
from tests.simulation.stand_ins import simulated_modules, virtual_time

SAMPLES, EACH = 24, 6
"""Samples of a fit, and of each of its simulations."""

KINDS = {
    "task": ("die", "mute", "slow", "late"),
    "event": ("jump",),
    "message": ("late", "cut", "cut", "die", "die"),
}


OCCASIONS = {"task": 7, "event": 800, "message": 300}
"""How many occasions for faults a fit has, about."""

LONG = 6.0
"""Seconds by which something is late, much longer than the fit's checks are apart."""


class OnlineEvents(FiberEvents):
    """Tasks begin soon: they run until the fit ends."""

    pace = 0.01


def options_of(draw: random.Random) -> dict[str, Any]:
    """Draw a fit."""
    buffer = draw.choice([BufferSpec("FIFO", 16), BufferSpec("FIRO", 16, threshold=4), BufferSpec("FIFO", 5)])
    return {
        "workers": draw.choice([1, 2]),
        "num_simulators": draw.choice([1, 2]),
        "buffer": buffer,
        "batch_size": draw.choice([3, 5]),
        "merge_every_batches": draw.choice([1, 2]),
        "checkpoint_every": draw.choice([0.01, 0.5, 60.0]),
        "record_every": 0.5,
        "progress": False,
    }


def simulate_online(seed: int, faults: Sequence[Fault]) -> tuple[FaultPlan, float]:
    """Run an online fit with faults; return which have happened, and the virtual seconds. Raises ``Violation``."""
    events, plan = OnlineEvents(seed), FaultPlan(faults)
    options = options_of(random.Random(f"online {seed}"))
    with virtual_time(events), simulated_modules(events, plan), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = SimulatedEngine(1, events=events, faults=plan)
        try:
            inputs = split_range(SAMPLES, EACH)
            trainer, error = run_fit(engine, CountingNet(SAMPLES), OneHotSimulation(SAMPLES), inputs, **options)
            if error is not None:
                _check_error(error, plan)
                return plan, events.clock()
            trainer.close()
            engine.drain()
        finally:
            events.kill_all()
    _check_samples(trainer, options["workers"], plan)
    check_engine(engine)
    return plan, events.clock()


def _check_error(error: BaseException, plan: FaultPlan) -> None:
    """Only processes that die too often end a fit."""
    deadly = [fault for fault in plan.fired if fault.kind in ("die", "mute", "cut")]
    if not (isinstance(error, WorkerLostError | SimulationError) and len(deadly) > 2):
        raise Violation("".join(traceback.format_exception(error)))


def _check_samples(trainer: Any, workers: int, plan: FaultPlan) -> None:
    """Each sample is trained once; more often only if a worker has died; never only if a simulation was skipped."""
    counts = sample_counts(trainer.get_parameters(), workers)
    skipped = trainer.history[-1]["simulations"]["failed"]
    if min(counts) < 1 and not skipped:
        raise Violation(f"samples were trained {counts} times, and no simulation was skipped")
    if max(counts) > 1 and not {fault.kind for fault in plan.fired} & {"die", "mute", "cut"}:
        raise Violation(f"samples were trained {counts} times, and no process died")
