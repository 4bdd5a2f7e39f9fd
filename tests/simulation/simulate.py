"""Run a fit with faults as a user would, starting it again until it is complete, and check what
must be so.
"""

import itertools
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from compss_train import DistributedTrainer
from compss_train.callbacks import JsonLines
from tests.simulation import online
from tests.simulation.engine import Events, Fault, FaultPlan
from tests.simulation.engine.processes import Runner, run_always
from tests.simulation.fibers import FiberEvents
from tests.simulation.laws import (
    Violation,
    check_checkpoints,
    check_end,
    check_engine,
    check_error,
    reference,
)
from tests.simulation.online import simulate_online
from tests.simulation.scenarios import number_of, scenario_of
from tests.simulation.world import DEATHS, World

Kinds: TypeAlias = Mapping[str, Sequence[str]]

KINDS: Kinds = {
    "task": ("die", "mute", "vanish", "slow", "late", "twice"),
    "disk": ("full", "cut", "kill"),
    "event": ("kill", "kill", "jump", "back"),
    "moment": ("kill", "kill", "jump", "back"),
    "message": ("late", "cut", "die", "double", "stale"),
}
"""Faults of each place; the most important one is drawn more often."""

LONG = 1800.0
"""Seconds by which a task is late or a clock jumps: longer than tasks take."""

DAY = 86_400.0


@dataclass(frozen=True)
class Outcome:
    """What a simulation came to."""

    fits: int
    """How many programs were started."""
    seconds: float
    """Virtual seconds."""
    fired: int
    """Faults that happened."""


def simulate(seed: int, faults: Sequence[Fault] | None = None, run: Runner = run_always) -> Outcome:
    """Run the fit that a seed stands for, with its faults or these, until it is complete.

    ``run`` runs the tasks of fits without messages.

    Raises ``Violation`` if something went wrong that must not, and what the harness itself raises.
    """
    return _simulate(seed, faults_of(seed) if faults is None else faults, run)[0]


def _simulate(
    seed: int, faults: Sequence[Fault], run: Runner = run_always
) -> tuple[Outcome, FaultPlan]:
    if is_online(seed):
        plan, fits, seconds = simulate_online(seed, faults)
        return Outcome(fits, seconds, len(plan.fired)), plan
    number = number_of(seed)
    reference(number)  # in a world of its own
    events, run = (FiberEvents, run_always) if scenario_of(number).served else (Events, run)
    with World(seed, faults, events, run) as world, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = _run_until_complete(world, number, most=3 + 2 * len(faults))
        return Outcome(fits, world.events.clock(), len(world.plan.fired)), world.plan


def is_online(seed: int) -> bool:
    """Return whether a seed stands for an online fit."""
    return seed % 8 == 3


def faults_of(seed: int) -> list[Fault]:
    """Draw faults: none in one of eight simulations, and else a few."""
    draw = random.Random(f"faults {seed}")
    count = 0 if draw.random() < 0.125 else 1 + int(draw.expovariate(0.5))
    if is_online(seed):
        return [_fault(draw, online.OCCASIONS, online.KINDS, online.LONG) for _ in range(count)]
    return [_fault(draw, _occasions(number_of(seed)), KINDS, LONG) for _ in range(count)]


def _fault(draw: random.Random, occasions: Mapping[str, int], kinds: Kinds, long: float) -> Fault:
    place = draw.choice([place for place in kinds if occasions.get(place)])
    kind = draw.choice(kinds[place])
    seconds = long * draw.randint(1, 9) if kind in ("slow", "late", "jump", "back") else 0.0
    return Fault(kind, place, draw.randrange(1 + 3 * occasions[place] // 2), seconds)


@cache
def _occasions(number: int) -> dict[str, int]:
    """Return how many occasions for faults a fit has."""
    seed = next(seed for seed in itertools.count() if number_of(seed) == number)
    return dict(_simulate(seed, ())[1].occasions)


def _run_until_complete(world: World, number: int, most: int) -> int:
    """Start the program of a scenario until it is complete; return how often."""
    for fits in range(1, most + 1):
        trainer = _run(world, number)
        if trainer is not None and trainer.stopped != "max_time":
            return fits
    raise Violation(f"{most} starts were not enough")


def _run(world: World, number: int) -> DistributedTrainer | None:
    """Start the program; return its trainer unless it was killed or failed."""
    scenario = scenario_of(number)
    before = len(world.plan.fired)
    checkpoint = world.checkpoint(**scenario.checkpoint)
    engine = world.engine(scenario.processes, shares_memory=scenario.shares_memory)
    trainer = scenario.trainer(engine)
    trainer.clock = world.events.clock
    try:
        scenario.fit(trainer, [JsonLines(world.log), checkpoint], resume=True, max_time=DAY)
        trainer.close()
        engine.drain()
    except (Exception, *DEATHS) as error:
        if killed := world.plan.killed:
            engine.shutdown(kill=True)
        else:
            check_error(world, error, since=before)
        world.restart(checkpoint)
        if killed:
            check_checkpoints(world, checkpoint)
        return None
    check_engine(engine)
    if trainer.stopped != "max_time":
        check_end(world, number, trainer, checkpoint)
    return trainer


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return faults with which it fails, and no longer does if any one of them is left out
    (Zeller's ddmin).
    """
    left = list(faults)
    parts = 2
    while left:
        size = -(-len(left) // parts)
        cuts = range(0, len(left), size)
        rest = next((kept for cut in cuts if fails(kept := left[:cut] + left[cut + size :])), None)
        if rest is not None:
            left = rest
            parts = max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def pasted(seed: int, faults: Sequence[Fault], error: BaseException) -> str:
    """Return the source of a test that fails."""
    lines = [
        f"        Fault({fault.kind!r}, {fault.place!r}, {fault.at}, {fault.seconds}),"
        for fault in faults
    ]
    given = ["    faults = [", *lines, "    ]"] if lines else ["    faults = []"]
    said = [*str(error).splitlines(), *getattr(error, "__notes__", ())] or [type(error).__name__]
    return "\n".join(
        [
            f"def test_seed_{seed}():",
            f"    # {said[-1][:100]}",
            *given,
            (f"    simulate({seed}, faults)"),
            "",
        ]
    )
