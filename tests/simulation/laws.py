"""What must be so after and during a simulated fit."""

import errno
import json
import traceback
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from compss_train import DistributedTrainer, SerialEngine
from compss_train.callbacks import Checkpoint
from compss_train.exceptions import BadCheckpointError, WorkerLostError
from compss_train.training.checkpoints import checkpoint_path, list_checkpoints, read_checkpoint
from tests.helpers.small_fits import numbers_of
from tests.simulation.engine import Fault, SimulatedEngine
from tests.simulation.fake_zmq import PATIENCE
from tests.simulation.scenarios import Scenario, scenario_of
from tests.simulation.world import World

UNANSWERED = 600 * PATIENCE
"""Seconds without an answer after which a parameter server is taken for dead: 60, counted as 0.1 a
poll.
"""


class Violation(AssertionError):  # noqa: N818 - what is found, not what went wrong here
    """What must not happen has happened."""


@cache
def reference(number: int) -> tuple[dict[str, Any], Any]:
    """Return the parameters and the history of a fit without faults, on the serial engine and
    without a server.
    """
    scenario = scenario_of(number)
    if scenario.served:
        scenario = replace(scenario, options={**scenario.options, "merge": "commutative"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = scenario.trainer(SerialEngine())
        scenario.fit(trainer, [])
    return trainer.get_parameters(), numbers_of(list(trainer.history))


def check_error(world: World, error: Exception, since: int) -> None:
    """An error is one that the program's faults explain, those since a number, and names its cause.

    A write that was cut short may be found by a later program.
    """
    fired = world.plan.fired[since:]
    kinds = {fault.kind for fault in fired}
    was_cut = "cut" in {fault.kind for fault in world.plan.fired}
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    lost = isinstance(error, WorkerLostError) and " died" in text
    full = (
        isinstance(error, OSError)
        and error.errno == errno.ENOSPC
        and str(world.root.parent) in text
    )
    damaged = isinstance(error, BadCheckpointError) and str(world.root) in text
    explained = (lost and kinds & {"die", "mute", "vanish"}) or (full and "full" in kinds)
    unanswered = (
        isinstance(error, TimeoutError)
        and "has not answered" in text
        and _lateness(fired) >= UNANSWERED
    )
    if not (explained or (damaged and was_cut) or unanswered):
        raise Violation("".join(traceback.format_exception(error)))
    if isinstance(error, BadCheckpointError):
        _repair(world, error)


def _lateness(fired: list[Fault]) -> float:
    """Return how many seconds messages were late, all together."""
    return sum(
        fault.seconds for fault in fired if fault.kind == "late" and fault.place == "message"
    )


def _repair(world: World, error: BadCheckpointError) -> None:
    """Do what the message says: resume from the good checkpoint, or begin a new fit."""
    for path in list_checkpoints(world.folder).values():
        if error.good is None or path.name > error.good.name:
            world.remove(path)


def check_checkpoints(world: World, checkpoint: Checkpoint) -> None:
    """All checkpoints can be read, and the last one that this program wrote or found is there."""
    if "cut" in {fault.kind for fault in world.plan.fired}:
        return
    found = list_checkpoints(world.folder)
    written = checkpoint.path
    if written is not None and written not in found.values():
        raise Violation(
            f"the checkpoint {written.name} was written, and there are those of {list(found)}"
        )
    for number, path in found.items():
        if len(history := read_checkpoint(path)["history"]) != number + 1:
            raise Violation(f"the checkpoint of round {number} has {len(history)} records")


def check_engine(engine: SimulatedEngine) -> None:
    """Nothing that was published or made is left."""
    if engine.values.held:
        raise Violation(f"the engine still holds {sorted(engine.values.held)}")


def check_end(
    world: World, number: int, trainer: DistributedTrainer, checkpoint: Checkpoint
) -> None:
    """The fit came to what it comes to without faults."""
    scenario = scenario_of(number)
    parameters, expected = reference(number)
    ours = trainer.get_parameters()
    history = numbers_of(list(trainer.history))
    for field in ("round", "samples"):
        if [record[field] for record in history] != [record[field] for record in expected]:
            raise Violation(f"{field} of the rounds: {[record[field] for record in history]}")
    if scenario.net == "ledger":
        times = scenario.workers * ours["weight"]
        # Alone, a change of one of two workers counts twice, and each of them is alone as often as
        # the other.
        fixed = scenario.options.get("quorum") in (None, 0, 1)
        most = scenario.epochs * (1 if fixed else scenario.workers)
        if not (np.all(times == times[0, 0]) and scenario.epochs <= times[0, 0] <= most):
            raise Violation(f"samples were trained {times} times")
    if scenario.reproducible:
        if {name: array.tobytes() for name, array in ours.items()} != {
            name: array.tobytes() for name, array in parameters.items()
        }:
            raise Violation("the parameters have other bits than without faults")
        if repr(history) != repr(expected):
            raise Violation(f"the history is {history}, and without faults {expected}")
    _check_files(world, scenario, trainer)


def _check_files(world: World, scenario: Scenario, trainer: DistributedTrainer) -> None:
    """The log has all rounds, the newest checkpoints are there, and nothing else."""
    # Load leaves out what is repeated.
    logged = [json.loads(line) for line in world.log.read_text().splitlines()]
    if [record["ended"] for record in logged[-len(trainer.history) :]] != [
        each["ended"] for each in trainer.history
    ]:
        raise Violation(f"the log has rounds {[record['round'] for record in logged]}")
    last = len(trainer.history) - 1
    if not (path := checkpoint_path(world.folder, last)).exists():
        raise Violation(f"{path} is missing")
    if (count := len(list_checkpoints(world.folder))) > scenario.keep + scenario.validated:
        raise Violation(f"there are {count} checkpoints, and {scenario.keep} were to be kept")
    if leftovers := world.leftovers():
        raise Violation(f"{leftovers} are left in the folder of checkpoints")
