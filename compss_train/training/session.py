"""What a trainer holds from fit to fit: its ``TrainedModel``, and the ``Session`` that holds its
engine.

In a fit the states of the workers of each group are one value of the engine: what the group's last
task returned. ``Stopping`` ends a fit before its last round, for a callback, a time limit or
SIGTERM.
"""

import secrets
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from compss_train import worker
from compss_train._utils.validation import check_count, check_seconds, check_seed
from compss_train.data.order import worker_seed
from compss_train.data.partitioning import singles
from compss_train.data.tables import Coding
from compss_train.engines import Engine, Ref, Resources, engine_class
from compss_train.exceptions import EngineClosedError, NotBuiltError
from compss_train.model import parameters as params
from compss_train.model.training_spec import TensorNames
from compss_train.reports.history import History
from compss_train.reports.records import Record
from compss_train.training.build_arguments import BuildArguments, check_picklable
from compss_train.training.callback import CallbackList
from compss_train.training.checkpoints import Progress, Study
from compss_train.training.data_source import DataSource
from compss_train.training.description import Details, described, described_fields
from compss_train.training.merge import Merge
from compss_train.worker.state import GroupState, WorkerState
from compss_train.worker.work import Job

FLOPS_OF_WEIGHT = 6
"""Operations of a training step per weight and sample: two each for the forward pass and its two
gradients.
"""

FLOPS_PER_SECOND = 1e10
"""Rough speed of a core; the training time decides how many workers share a task."""

MAX_TIME = "max_time"
SIGTERM = "SIGTERM"

MAX_WORKERS = 10**5
"""Maximum number of workers: each has a state and a random generator, which the coordinator
holds.
"""

TICK = 0.2
"""Seconds between two checks whether a waiting fit must stop at once."""

SAVING = 0.05
"""Share of a program's remaining time at the start of a fit that is reserved for work after the
fit.
"""
LONGEST_SAVING = 60.0
"""Maximum number of seconds to reserve."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process ended by SIGTERM, as in shells."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeState(Generic[Kept]):
    """What merges keep besides the parameters: values, or references to them during a fit."""

    moments: Kept | None = None
    """The mean of the workers' optimizer states, as named arrays, with
    ``optimizer_state="average"``.
    """
    outer: Kept | None = None
    """The state of the outer optimizer."""
    averaged: Kept | None = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""

    def refs(self) -> Iterator[Ref]:
        """Iterate over the references."""
        return (value for value in vars(self).values() if isinstance(value, Ref))

    def fetched(self, engine: Engine) -> "MergeState[Any]":
        """Return the values, waiting for the tasks that compute them."""
        names = [each.name for each in fields(self) if isinstance(getattr(self, each.name), Ref)]
        return replace(self, **dict(zip(names, engine.fetch(list(self.refs())), strict=True)))


NOTHING_KEPT: MergeState[Any] = MergeState()


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a fit passes on to the next fit and to a checkpoint, besides the parameters."""

    workers: tuple[WorkerState, ...] = ()
    """The state of each worker; workers without a state start fresh."""
    merge: MergeState[Any] = NOTHING_KEPT


States: TypeAlias = Sequence[GroupState | Ref]
"""The states of each group."""


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [each for each in states if isinstance(each, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    return [
        state for each in states for state in (next(fetched) if isinstance(each, Ref) else each)
    ]


class Stopping:
    """Whether one fit must stop, why, and whether at once.

    A fit stops at the end of a round if possible: before a round that would exceed ``max_time``,
    judging by the longest round so far. If the time is up during a round, or on SIGTERM, stopping
    is ``urgent``: the current round is cancelled. ``time_left`` is the number of seconds until the
    whole program is ended, ``None`` for no limit: the fit stops a little earlier, as with
    ``max_time``.
    """

    def __init__(
        self,
        max_time: float | timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
        time_left: float | None = None,
    ) -> None:
        self.clock = clock
        """A clock in seconds, like ``time.monotonic``; it measures ``max_time`` and the duration of
        rounds.
        """
        if isinstance(max_time, timedelta):
            max_time = max_time.total_seconds()
        limits = [] if max_time is None else [check_seconds("max_time", max_time)]
        if time_left is not None:
            limits.append(time_left - min(SAVING * time_left, LONGEST_SAVING))
        self._deadline = clock() + min(limits) if limits else None
        self._longest = 0.0
        self._terminated = False
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the fit must stop, or ``None`` if it need not."""
        if self._terminated:
            return SIGTERM
        return self._reason or (MAX_TIME if self.urgent else None)

    @property
    def urgent(self) -> bool:
        """Whether the current round must be cancelled."""
        return self._terminated or (self._deadline is not None and self.clock() > self._deadline)

    def request(self, reason: str) -> None:
        """Make the fit stop; the first reason counts."""
        self._reason = self._reason or reason

    def after_round(self, seconds: float) -> None:
        """Record the duration of a round, and stop if another one would exceed the time limit."""
        self._longest = max(self._longest, seconds)
        if self._deadline is not None and self.clock() + self._longest > self._deadline:
            self.request(MAX_TIME)

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Stop on SIGTERM, unless the program has its own handler or this is not the main thread.

        Raises ``SystemExit`` at the end of the block if the signal was received.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._terminated:
            raise SystemExit(TERMINATED)

    def _terminate(self, number: int, frame: Any) -> None:
        self._terminated = True


@dataclass(kw_only=True, eq=False)
class Fit(ABC):
    """What the trainer, callbacks and signals act on while a fit runs."""

    callbacks: CallbackList
    stopping: Stopping
    validation: DataSource | None
    merge: Merge
    """How workers merge, every option set."""
    running: bool = False
    """Whether its tasks run: from before the first one is submitted until after the last one has
    ended.
    """
    started: float = field(default_factory=time.time, init=False)
    """Unix time."""

    method: ClassVar[str]
    """The method of the trainer that runs it."""
    leaves_processes: ClassVar[bool]
    """Whether other tasks can run meanwhile."""
    saves_studies: ClassVar[bool] = False
    """Whether it resumes from saves, and not from every round."""

    @property
    def remarks(self) -> Sequence[str]:
        """What is worth a line at the start, each a sentence."""
        return ()

    @property
    @abstractmethod
    def asked(self) -> Mapping[str, Any]:
        """The options that determine the parameters, and where samples come from, by name."""

    @cached_property
    def described(self) -> dict[str, Any]:
        """What ``trainer.configuration`` has of the fit; nothing of it holds samples."""
        names = [type(each).__qualname__ for each in self.callbacks.all]
        return {
            "method": self.method,
            "started": self.started,
            **{name: described(value) for name, value in self.asked.items()},
            "callbacks": [name for name in names if not name.startswith("_")],
        }

    @property
    def save(self) -> Study | None:
        """The save that belongs to the last record, if any."""
        return None

    @property
    def progress(self) -> Progress | None:
        """What a later fit needs to go on where this one is, or ``None`` if none can."""
        return None

    @abstractmethod
    def newest(self) -> params.Parameters | None:
        """Return the global parameters after the last complete round, or ``None`` before the
        first.
        """

    @abstractmethod
    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the same parameters, and the state of the training at that moment."""

    @abstractmethod
    def averaged(self) -> params.Parameters | None:
        """Return the average of the parameters of the last merges, or ``None`` without
        averaging.
        """


class TrainedModel:
    """The network of a trainer with its global parameters and its history, and the fit that runs,
    if any.
    """

    def __init__(self, seed: int | None) -> None:
        self.given_seed = None if seed is None else check_seed(seed)
        """The user's seed, or ``None`` for a drawn one."""
        self.seed = secrets.randbits(32) if self.given_seed is None else self.given_seed
        self.fit: Fit | None = None
        """The running fit, or ``None``."""
        self.start_over(None)

    def start_over(self, built: BuildArguments | None) -> None:
        """Start over with a network, or without one."""
        self._built = built
        self.parameters = (
            {} if built is None else params.copy_of(params.from_module(built.training_spec.net))
        )
        self.as_built = True
        self.averaged: params.Parameters | None = None
        """The average of the parameters that the last fit kept, with ``Merge(averaging=...)``."""
        self.epochs = 0
        self.history = History()
        self.last_fit: dict[str, Any] | None = None
        """The description of the last fit that has ended."""
        self.coding: Coding = {}
        """What the numbers of the last fit's data meant."""
        self.stopped: str | None = None
        self.resumed_from: Path | None = None

    @property
    def parameters(self) -> params.Parameters:
        """The global parameters; during a fit, those before it."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: params.Parameters) -> None:
        self._parameters = parameters
        self.as_built = False

    @property
    def built(self) -> BuildArguments:
        """The arguments of ``build``; raises ``NotBuiltError`` before it was called."""
        if self._built is None:
            raise NotBuiltError(
                "this trainer has no network yet; call build(net, optimizer, loss) first"
            )
        return self._built

    @property
    def described(self) -> dict[str, Any] | None:
        """The arguments of ``build`` as values that JSON can hold, or ``None`` before it was
        called.
        """
        if self._built is None:
            return None
        spec = described_fields(self._built.training_spec)
        others = described_fields(self._built)
        del others["training_spec"]
        count = sum(parameter.numel() for parameter in self._built.training_spec.net.parameters())
        return {
            "net": spec.pop("net"),
            "parameters": count,
            **spec.pop("gradients"),
            **spec,
            **others,
        }

    @property
    def described_fit(self) -> dict[str, Any] | None:
        """What there is to tell of the fit that runs, or of the last one, if any."""
        fit = self.fit
        return self.last_fit if fit is None else fit.described

    @property
    def details(self) -> Details | None:
        """What tells apart the objects of ``build``, or ``None`` before it was called."""
        return (
            None if self._built is None else {**self._built.objective, **self._built.surroundings}
        )

    def require_idle(self, method: str) -> None:
        """Raise ``RuntimeError`` during a fit."""
        if self.fit is not None:
            raise RuntimeError(
                f"{method} was called during a fit, from a callback; call it when the fit has ended"
            )

    def require_workers(self, method: str) -> None:
        """Raise ``RuntimeError`` during an online fit, whose tasks leave no process for others
        until it ends.
        """
        if self.fit is not None and self.fit.running and not self.fit.leaves_processes:
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks use all processes; give "
                "fit_online validation_data=, or use model() in this process"
            )

    def current(self, *, averaged: bool = False) -> params.Parameters:
        """Return the global parameters, or their average; during a fit, those after the last
        complete round.
        """
        running = self.fit if self.fit is not None and self.fit.running else None
        if not averaged and self.built:
            newest = None if running is None else running.newest()
            return self.parameters if newest is None else newest
        average = self.averaged if running is None else running.averaged()
        if average is None:
            raise ValueError(
                "the last fit kept no average of the parameters; give fit "
                'merge=Merge(averaging="ema")'
            )
        return average

    @property
    def state_id(self) -> object:
        """What tells apart the states that a fit can resume from: a round, or the save of a study;
        or ``None``.
        """
        if self.fit is not None and self.fit.saves_studies:
            return self.fit.save
        return self.history[-1]["round"] if self.history else None

    def record(self, record: Record) -> None:
        """Add the record of a round to the history, and pass it to the callbacks of the fit."""
        self.history.append(record)
        self.epochs = record.get("epoch", self.epochs)
        if self.fit is not None:
            self.fit.callbacks.round_end(record)


class Session:
    """Where the workers of a trainer work, and what they keep; ``DistributedTrainer`` documents the
    arguments.

    Each group of workers trains in one task, one worker after another. Its states are one value:
    what the group's last task returned.
    """

    def __init__(
        self,
        model: TrainedModel,
        num_workers: int | None,
        engine: str | Engine,
        threads: int | None,
        worker_timeout: float | None,
    ) -> None:
        self.model = model
        """What the workers train."""
        self._given = engine if isinstance(engine, Engine) else None
        self._engine = self._given
        self.engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        own = None if self._engine is None else self._engine.threads
        fixed = own if threads is None else check_count("threads", threads)
        if num_workers is None:
            slots = 0 if self._engine is None else self._engine.slots(Resources(fixed or 1))
            num_workers = slots or self.engine_class.default_workers(fixed or 1)
        self.num_workers = check_count("num_workers", num_workers)
        if self.num_workers > MAX_WORKERS:
            raise ValueError(
                f"num_workers={num_workers}: give at most {MAX_WORKERS}, and no more than "
                "samples or processors"
            )
        self.threads = fixed or self.engine_class.thread_share(self.num_workers)
        self.worker_timeout = (
            None if worker_timeout is None else check_seconds("worker_timeout", worker_timeout)
        )
        self.groups: list[range] = []
        """The groups of workers."""
        self.states: list[GroupState | Ref] = []
        """The states of each group, after the tasks that were submitted."""
        self.merge_state = NOTHING_KEPT
        """What merges keep besides the parameters."""

    @property
    def engine(self) -> Engine:
        """The engine, started on first use."""
        if self._engine is None:
            self._engine = self.engine_class.start(
                self.num_workers, self.threads, [worker.__name__]
            )
        return self._engine

    @property
    def slots(self) -> int:
        """How many workers can train at a time, as far as is known before processes start; 0 if it
        is not.
        """
        if self.resources.gpus:
            return 0
        if self._engine is not None:
            return self._engine.slots(self.resources)
        return sum(node.cpus // self.threads for node in self.engine_class.nodes())

    @property
    def must_start(self) -> bool:
        """Whether the next task waits for processes to start, in which all is as in this one."""
        return self._engine is None and self.engine_class.traits.starts_processes

    @property
    def names(self) -> TensorNames:
        """The names of the network's tensors."""
        return self.model.built.training_spec.names

    def device(self, worker: int) -> str:
        """Return the device of a worker."""
        return self.engine_class.device(worker, self.model.built.num_gpu)

    @property
    def resources(self) -> Resources:
        """What the task of a group needs."""
        num_gpu = self.model.built.num_gpu
        return Resources(
            cpus=self.threads, gpus=1 / -(-self.num_workers // num_gpu) if num_gpu else 0
        )

    @property
    def sample_seconds(self) -> float:
        """Rough estimate of the time, in seconds, that a core trains on a sample."""
        weights = sum(
            parameter.numel() for parameter in self.model.built.training_spec.net.parameters()
        )
        return FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * weights

    @contextmanager
    def working(self, *, fitting: bool = False) -> Iterator[None]:
        """Start the engine if necessary, and provide a scope of it, whose tasks end with an
        exception.

        The tasks of a fit are watched. Its exceptions end the session, as do those of a dead
        engine. An exception in ``evaluate`` or ``predict`` does not, since the session holds the
        workers' states.
        """
        errors = BaseException if fitting else EngineClosedError
        with ExitStack() as scope:
            try:
                scope.enter_context(self.engine.scope(watched=fitting, timeout=self.worker_timeout))
                yield
            except errors:
                # Inside the scope, which has nothing to wait for if the engine is our own.
                self.end(kill=True)
                raise

    @contextmanager
    def fitting(self, fit: Fit, samples: int | None) -> Iterator[None]:
        """Work on a fit, which callbacks, Ctrl-C and SIGTERM can stop; call its callbacks.

        ``samples`` is the number to train on, if known. Callbacks begin before processes start, to
        say at once what is wrong, and end before these do. Afterwards, the tasks of a fit that was
        stopped at once are ended, and after SIGTERM the process.
        """
        model = self.model
        model.stopped = None
        model.fit = fit
        with ExitStack() as work:
            try:
                with fit.stopping.on_sigterm():
                    with fit.callbacks.fit(samples):
                        work.enter_context(self.working(fitting=True))
                        yield
                    if fit.stopping.reason == SIGTERM:  # the end of the block raises ``SystemExit``
                        _report_end(SIGTERM, model)
                    elif fit.stopping.urgent:
                        self._end_tasks()
            except KeyboardInterrupt:
                _report_end("Ctrl-C", model)
                raise
            finally:
                model.last_fit = fit.described
                model.fit = None

    def publish(self, job: Job) -> Ref:
        """Publish what the tasks of a fit or an evaluation have in common.

        Raises ``TypeError`` for a data set that cannot be pickled.
        """
        try:
            return self.engine.publish(job)
        except Exception:
            check_picklable(dataset=job.reader)  # names the attribute
            raise

    def regroup(self, groups: Sequence[range]) -> None:
        """Make the states of each group one value; waits for the states if workers were grouped
        differently.
        """
        if list(groups) != self.groups:
            states = fetch_states(self.engine, self.states)
            self.groups = [*groups]
            self.states = [tuple(states[worker] for worker in group) for group in groups]

    def keep(self, states: States, merge_state: MergeState[Any]) -> None:
        """Keep these states of the groups, and of their merges, for the next fit."""
        self.states = [*states]
        self.merge_state = merge_state

    def state(self) -> TrainingState:
        """Return what workers and merges keep from fit to fit, waiting for the tasks that compute
        it.
        """
        if self._engine is None:  # these are values, as nothing was trained
            workers = [
                each for states in self.states if not isinstance(states, Ref) for each in states
            ]
            return TrainingState(tuple(workers), self.merge_state)
        return TrainingState(
            tuple(fetch_states(self.engine, self.states)), self.merge_state.fetched(self.engine)
        )

    def set_state(self, state: TrainingState) -> None:
        """Continue from this state, in the same engine; workers without one in it start fresh."""
        if self._engine is not None:
            with suppress(EngineClosedError):
                self._engine.free([*state_refs(self.states), *self.merge_state.refs()])
        self.groups = singles(range(self.num_workers))
        others = range(len(state.workers), self.num_workers)
        new = [WorkerState(None, worker_seed(self.model.seed, worker)) for worker in others]
        self.states = [(each,) for each in (*state.workers[: self.num_workers], *new)]
        self.merge_state = state.merge

    def trained_samples(self) -> int | None:
        """Return how many samples the engine's workers have reported, if it has started and
        knows.
        """
        return None if self._engine is None else self._engine.trained_samples()

    def end(self, *, kill: bool) -> None:
        """Drop what the engine holds, and end the engine unless the caller made it."""
        if state_refs(self.states) or [*self.merge_state.refs()]:
            self.set_state(TrainingState())
        if self._engine is not self._given and self._engine is not None:
            self._engine.shutdown(kill=kill)
        self._engine = self._given

    def _end_tasks(self) -> None:
        """End tasks that were left running, and our own processes; the states of the workers are
        kept.
        """
        if self.engine.traits.interruptible:
            state = self.state()  # waits for a merge that still runs
            if self._given is not None:
                self._given.cancel()
            else:
                self.end(kill=True)
                self.set_state(state)


def _report_end(how: str, model: TrainedModel) -> None:
    last = (
        f"last complete round: {model.history[-1]['round']}"
        if model.history
        else ("no round completed")
    )
    print(f"compss_train: fit interrupted by {how}; {last}", file=sys.stderr)
