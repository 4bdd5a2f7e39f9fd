"""Simulated online fits: samples travel over connections that break, to workers and from what dies.

Simulations send them, and in some fits another program.
"""

import errno
import itertools
import random
import re
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    SampleSender,
    SimulationError,
    WorkerLostError,
)
from compss_train.exceptions import TrainingEndedError
from compss_train.online.routing import Routing
from compss_train.training.checkpoints import (
    list_checkpoints,
    read_checkpoint,
    read_latest_checkpoint,
)
from tests.online.fits import build_trainer, online, split_range
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    OneHotSimulation,
    one_hot,
    raise_error,
    sample_counts,
    sum_loss,
)
from tests.simulation.engine import Fault, FaultPlan
from tests.simulation.fibers import FiberEvents
from tests.simulation.laws import Violation, check_checkpoints, check_engine
from tests.simulation.world import DEATHS, World

SAMPLES = 24
"""Samples of a fit."""
SAMPLES_OF_SIMULATION = 6
"""Samples of each simulation, or of a sender, which has the last ones."""

KINDS = {
    "task": ("die", "mute", "slow", "late"),
    "disk": ("full", "kill"),
    "moment": ("kill", "kill", "jump", "back"),
    "message": ("late", "cut", "cut", "die", "die", "double", "stale"),
}


OCCASIONS = {"task": 7, "disk": 30, "moment": 800, "message": 300}
"""How many occasions for faults a fit has, about."""

LONG = 6.0
"""Seconds by which something is late, much longer than the fit's checks are apart."""

ADDRESS = {"address": "tcp://127.0.0.1:5555", "token": "ours alone"}

REPEATING = {"die", "mute", "cut", "double", "stale", "jump"}
"""Faults after which a worker may start again from its checkpoint, and train samples again."""


@dataclass(frozen=True)
class FailAt:
    """Fails at a sample each time that its simulation runs, so that this is given up; at none by
    default.
    """

    at: int = SAMPLES

    def __call__(self, number: int) -> None:
        if number == self.at:
            raise_error()

    @property
    def yielded(self) -> list[int]:
        """The numbers of all samples that are sent."""
        return [
            number
            for number in range(SAMPLES)
            if number < self.at
            or number // SAMPLES_OF_SIMULATION != self.at // SAMPLES_OF_SIMULATION
        ]


class Said:
    """What fits have said of senders, in warnings."""

    def __init__(self, warned: Sequence[warnings.WarningMessage]) -> None:
        self._warned = warned

    @property
    def asks(self) -> int:
        """How often a fit has asked to start a sender again, as a worker has lost its samples."""
        return sum("start it again, and it sends" in text for text in self._texts())

    @property
    def sender_failed(self) -> bool:
        """Whether a sender without a name has failed: what it has not sent is not known."""
        return any(text.startswith("a sender has failed") for text in self._texts())

    @property
    def lost(self) -> int:
        """How many samples of senders are lost."""
        lost_samples = 0
        for text in self._texts():
            told = re.search(r"goes on without (\d+) samples|lacks (\d+) samples of senders", text)
            if told is not None:
                lost_samples += int(told[1] or told[2])
        return lost_samples

    def _texts(self) -> list[str]:
        return [str(warning.message) for warning in self._warned]


class Sender:
    """A program that sends the last samples; it is started again if it dies, meets no fit in time,
    or is asked for.
    """

    def __init__(self, events: FiberEvents, name: str | None, said: Said) -> None:
        self._events = events
        self._name = name
        self._said = said
        self._is_needed = True
        self._process: object = None
        self._has_ended = False
        events.start(self._run, process=object(), name="starter of a sender")

    def _run(self) -> None:
        while self._is_needed:
            asks = self._said.asks
            self._has_ended = False
            while not self._has_ended:
                self._process = object()
                fiber = self._events.start(self._send, self._process, name="sender")
                self._events.wait(lambda fiber=fiber: fiber.finished)
            self._events.wait(lambda asks=asks: not self._is_needed or self._said.asks > asks)

    def _send(self) -> None:
        with suppress(OSError):
            with suppress(TrainingEndedError), SampleSender(**ADDRESS, name=self._name) as sender:
                for number in range(SAMPLES - SAMPLES_OF_SIMULATION, SAMPLES):
                    sender.send(one_hot(number, SAMPLES), np.float32(0))
            self._has_ended = True

    def retire(self) -> None:
        """Start it no more: the study has ended."""
        self._has_ended = True
        self._is_needed = False

    def interrupt(self) -> None:
        """Start it no more; end it if it has a name, and would wait for the next program without a
        limit.
        """
        self.retire()
        if self._name is not None:
            self._events.kill(self._process)


class OnlineEvents(FiberEvents):
    """Tasks begin soon: they run until the fit ends."""

    pace = 0.01
    patient = False


def options_of(draw: random.Random) -> dict[str, Any]:
    """Draw a fit."""
    buffer = draw.choice(
        [BufferSpec("FIFO", 16), BufferSpec("FIRO", 16, threshold=4), BufferSpec("FIFO", 5)]
    )
    return {
        "count": draw.choice([1, 2]),
        "buffer": buffer,
        "batch_size": draw.choice([3, 5]),
        "every": draw.choice([1, 2]),
        "checkpoint_every": draw.choice([0.01, 0.5, 60.0]),
        "record_every": 0.5,
        "progress": False,
    }


def simulate_online(seed: int, faults: Sequence[Fault]) -> tuple[FaultPlan, int, float]:
    """Run an online fit with faults until it is complete, or has failed as it may.

    Returns the faults that have happened, how many programs were started, and the virtual seconds.
    Raises ``Violation``.
    """
    draw = random.Random(f"online {seed}")
    workers = draw.choice([1, 2])
    options = options_of(draw)
    fails, options["retries"] = (
        FailAt(draw.choice([SAMPLES, draw.randint(1, SAMPLES)])),
        draw.choice([0, 2]),
    )
    if random.Random(f"saves {seed}").random() < 0.25:
        options["checkpoint_every"] = None
    options["senders"] = draw.choice([(), (), ("solver",), (None,)])
    if options["senders"] and fails.at >= SAMPLES - SAMPLES_OF_SIMULATION:
        fails = FailAt()
    with World(seed, faults, OnlineEvents) as world, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for fits in range(1, 2 + len(faults)):
            if _run(world, workers, fails, options, said=Said(warned)):
                return world.plan, fits, world.events.clock()
    raise Violation(f"{1 + len(faults)} starts were not enough")


def _run(world: World, workers: int, fails: FailAt, options: dict[str, Any], *, said: Said) -> bool:
    """Start the program, which goes on from its last save; return whether it has ended."""
    before = len(world.plan.fired)
    checkpoint = world.checkpoint()
    engine = world.engine()
    trainer = build_trainer(engine, workers, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    trainer.clock = world.events.clock
    names = options["senders"]
    inputs = split_range(SAMPLES - SAMPLES_OF_SIMULATION * len(names), SAMPLES_OF_SIMULATION)
    sent = {"senders": len(names), **(ADDRESS if names else {})}
    study = {"callbacks": [checkpoint], "resume": True, **options, **sent}
    senders = [
        Sender(world.events, name, said)
        for name in names
        if name is not None or not _is_complete(world)
    ]
    try:
        online(trainer, OneHotSimulation(SAMPLES, fails), inputs, **study)
        for sender in senders:
            sender.retire()
        trainer.close()
        engine.drain()
    except (Exception, *DEATHS) as error:
        if killed := world.plan.killed:
            for sender in senders:
                sender.interrupt()
            world.outlive(engine)
        else:
            _check_error(world, error, before)
        world.restart(checkpoint)
        check_checkpoints(world, checkpoint)
        _check_saves(world, workers)
        return not killed
    fired = {fault.kind for fault in world.plan.fired}
    _check_samples(trainer, workers, fails, names, fired=fired, said=said)
    check_engine(engine)
    world.restart(checkpoint)
    return True


def _is_complete(world: World) -> bool:
    """Return whether the last save holds a sender as complete: nobody expects it any more."""
    if not world.checkpoints():
        return False
    return bool(read_latest_checkpoint(world.folder)[1]["study"]["senders"]["completed"])


def _check_error(world: World, error: BaseException, since: int) -> None:
    """Only processes that die too often, and a full disk, end a fit."""
    fired = world.plan.fired[since:]
    deadly = [fault for fault in fired if fault.kind in REPEATING]
    lost = isinstance(error, WorkerLostError | SimulationError) and len(deadly) > 2
    is_counted = "without a name" in str(error)
    lost = lost or (isinstance(error, SimulationError) and is_counted and bool(deadly))
    full = (
        isinstance(error, OSError)
        and error.errno == errno.ENOSPC
        and str(world.root.parent) in str(error)
    )
    if not (lost or (full and any(fault.kind == "full" for fault in fired))):
        raise Violation("".join(traceback.format_exception(error)))


def _check_saves(world: World, workers: int) -> None:
    """Workers have all samples of a sender that a save holds as complete, unless one has died since
    it ended.
    """
    if REPEATING & {fault.kind for fault in world.plan.fired}:
        return
    for path in list_checkpoints(world.folder).values():
        study = read_checkpoint(path)["study"]
        for (stream, samples), worker in itertools.product(
            study["senders"]["completed"], range(workers)
        ):
            part = study["workers"][worker]
            own = [
                number
                for number in range(samples)
                if Routing(workers, whole=False).worker_of(stream, number) == worker
            ]
            if (
                own
                and part["repetitions"] is None
                and dict(part["offsets"].tolist()).get(stream, 0) <= own[-1]
            ):
                raise Violation(
                    f"worker {worker} lacks samples of the sender that {path.name} "
                    "holds as complete"
                )


def _check_samples(
    trainer: DistributedTrainer,
    workers: int,
    fails: FailAt,
    senders: Sequence[str | None],
    *,
    fired: set[str],
    said: Said,
) -> None:
    """Each sample that was sent is trained once over the lives of the program, however often it was
    killed.

    More often only if a worker has died and its program went on, or by a sender without a name,
    which each program gets all samples of; never only if a simulation was skipped, or by a sender
    without a name that has died, or as often as fits have said of senders.
    """
    counts = sample_counts(trainer.get_parameters(), workers)
    trained = [counts[number] for number in fails.yielded]
    skipped = trainer.history[-1]["simulations"]["failed"]
    once = counts[:-SAMPLES_OF_SIMULATION] if None in senders else counts
    may_lack = (skipped and fired & REPEATING) or said.sender_failed
    if trained.count(0) > said.lost and not may_lack:
        raise Violation(f"samples were trained {counts} times, and {said.lost} are said to be lost")
    if (sum(counts) > sum(trained)) or (max(once) > 1 and not fired & REPEATING):
        raise Violation(f"samples were trained {counts} times, and no process died")
