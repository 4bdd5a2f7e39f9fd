"""``Session``: where the workers of a trainer work, and what they keep from fit to fit."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from compss_train import worker
from compss_train._utils.validation import check_count, check_seconds
from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources, engine_class
from compss_train.engines.mapping import ItemRef, fetch_items, whole_values
from compss_train.engines.watch import say
from compss_train.exceptions import EngineClosedError
from compss_train.model.model_state import ModelState
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Cut
from compss_train.model.training_spec import TensorNames
from compss_train.training import unfinished
from compss_train.training.merge import Merge
from compss_train.training.merged import Merged
from compss_train.training.pickling import check_picklable
from compss_train.training.running_fit import Fit
from compss_train.training.stopping import SIGTERM
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import (
    NOTHING_KEPT,
    MergeState,
    States,
    TrainingState,
)
from compss_train.worker.merging.buffers import BufferRules
from compss_train.worker.state import WorkerState
from compss_train.worker.work import Job

FLOPS_OF_WEIGHT = 6
"""Operations of a training step per weight and sample.

They are two each for the forward pass and its two gradients.
"""

FLOPS_PER_SECOND = 1e10
"""Rough speed of a core; the training time decides how many workers share a task."""

MAX_WORKERS = 10**5
"""Maximum number of workers: the coordinator holds a state and a random generator of each."""


class Session:
    """The engine of a trainer's workers, and what they keep from fit to fit.

    ``DistributedTrainer`` documents the arguments. Each worker has a state: what its last task
    returned, which the next one continues.
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
        self._callers_engine = engine if isinstance(engine, Engine) else None
        """The engine that the caller made, who shuts it down."""
        self._engine = self._callers_engine
        self.engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        fixed_threads = None if self._engine is None else self._engine.threads
        if threads is not None:
            fixed_threads = check_count("threads", threads)
        if num_workers is None:
            num_workers = self._default_workers(fixed_threads or 1)
        self.num_workers = check_count("num_workers", num_workers)
        if self.num_workers > MAX_WORKERS:
            raise ValueError(
                f"num_workers={num_workers}: give at most {MAX_WORKERS}, and no more than "
                "samples or processors"
            )
        self.threads = fixed_threads or self.engine_class.thread_share(self.num_workers)
        self.worker_timeout = worker_timeout
        if worker_timeout is not None:
            self.worker_timeout = check_seconds("worker_timeout", worker_timeout)
        self.states: list[WorkerState | Ref] = []
        """The state of each worker, after the tasks that were submitted."""
        self.kept: MergeState | Merged = NOTHING_KEPT
        """What merges keep besides the parameters."""
        self.own_buffers: frozenset[str] = frozenset()
        """Buffers in the state_dict of which tasks have left each worker its own."""

    def _default_workers(self, threads: int) -> int:
        """Return how many workers can train at once with so many threads each."""
        slots = 0 if self._engine is None else self._engine.slots(Resources(threads))
        return slots or self.engine_class.default_workers(threads)

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
        """How many workers can train at a time; 0 if that is unknown before processes start."""
        if self.resources.gpus:
            return 0
        if self._engine is not None:
            return self._engine.slots(self.resources)
        return sum(node.cpus // self.threads for node in self.engine_class.nodes())

    @property
    def must_start(self) -> bool:
        """Whether the next task waits for processes to start, which have all that this one has."""
        return self._engine is None and self.engine_class.traits.starts_processes

    @property
    def names(self) -> TensorNames:
        """The names of the network's tensors."""
        return self.model.built.training_spec.names

    def buffer_rules(self, merge: Merge) -> BufferRules:
        """Return how buffers merge that are no statistics.

        Raises ``ValueError`` for rules that the network's buffers do not suit.
        """
        return BufferRules.of(merge.buffers, self.names, self.model.parameters)

    def device(self, worker: int) -> str:
        """Return the device of a worker."""
        return self.engine_class.device(worker, self.model.built.num_gpu)

    @property
    def resources(self) -> Resources:
        """What a task that trains needs."""
        num_gpu = self.model.built.num_gpu
        if not num_gpu:
            return Resources(cpus=self.threads)
        workers_a_gpu = -(-self.num_workers // num_gpu)
        return Resources(cpus=self.threads, gpus=1 / workers_a_gpu)

    @property
    def sample_seconds(self) -> float:
        """Rough estimate of the time, in seconds, that a core trains on a sample."""
        return FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * self.model.number_weights

    @contextmanager
    def working(self, *, fitting: bool = False) -> Iterator[None]:
        """Provide a scope of the engine, started if necessary, whose tasks end with an exception.

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
        with unfinished.noted(model), ExitStack() as work:
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
                model.example = fit.example()
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

    @property
    def states_apart(self) -> bool:
        """Whether the states of workers that share a task are values of their own.

        Then a state moves only with its worker, but each costs as an object.
        """
        object_bytes = self.engine.traits.object_bytes
        return not object_bytes or self.model.built.state_bytes >= object_bytes

    def merged(self, parameters: Parameters, cut: Cut) -> Merged:
        """Publish the parameters in parts, with what merges keep cut alike."""
        kept = self.kept
        if isinstance(kept, Merged) and kept.cut.parts == cut.parts:
            return kept.with_parameters(self.engine, parameters)
        if isinstance(kept, Merged):
            kept = kept.fetch_kept(self.engine)
        return Merged.published(self.engine, cut, parameters, kept)

    def keep(self, states: States, kept: MergeState | Merged) -> None:
        """Keep these states of the workers, and of their merges, for the next fit."""
        self.states = [*states]
        self.kept = kept

    def state(self) -> TrainingState:
        """Return what workers and merges keep; waits for the tasks that compute it."""
        return self.fetched(self.states, self.kept)

    def separate_states(self) -> list[WorkerState | Ref]:
        """Return the states of the workers, each a value of its own."""
        shared = [state for state in self.states if isinstance(state, ItemRef)]
        fetched = dict(zip(map(id, shared), fetch_items(self.engine, shared), strict=True))
        return [fetched.get(id(state), state) for state in self.states]

    def fetched(self, states: States, kept: MergeState | Merged) -> TrainingState:
        """Return the states of workers and of merges, waiting for the tasks that compute them."""
        # Before an engine has started, they are values.
        workers: Sequence[Any] = states
        if self._engine is not None:
            workers = fetch_items(self._engine, states)
        if isinstance(kept, Merged):
            kept = kept.fetch_kept(self.engine)
        return TrainingState(tuple(workers), kept)

    def set_state(self, state: TrainingState) -> None:
        """Continue from this state, in the same engine; workers without one in it start fresh."""
        if self._engine is not None:
            with suppress(EngineClosedError):
                self._engine.free(self._held)
        kept = self.model.state or {"buffers": None, "attributes": None}
        fresh = [
            WorkerState(
                None,
                worker_seed(self.model.seed, worker),
                module_buffers=kept["buffers"],
                attributes=kept["attributes"],
            )
            for worker in range(len(state.workers), self.num_workers)
        ]
        self.states = [*state.workers[: self.num_workers], *fresh]
        self.own_buffers = frozenset()
        self.kept = state.merge

    def replace_own_buffers(self) -> None:
        """Let workers go on with the buffers of the global parameters in place of their own."""
        states: Sequence[WorkerState | Ref] = self.states
        if self.own_buffers:
            states = self.fetched(states, NOTHING_KEPT).workers
        merged = self.model.parameters.keys()
        self.states = [
            state.without_buffers(merged) if isinstance(state, WorkerState) else state
            for state in states
        ]

    def begin_with(self, state: ModelState) -> None:
        """Let the model be in this state, and workers that have not trained begin with it."""
        self.model.state = state
        self.states = [
            replace(worker, module_buffers=state["buffers"], attributes=state["attributes"])
            if isinstance(worker, WorkerState) and not worker.batches
            else worker
            for worker in self.states
        ]

    @property
    def _held(self) -> list[Ref]:
        """The values that the engine holds for this session."""
        merged = [*self.kept.refs()] if isinstance(self.kept, Merged) else []
        return [*whole_values(self.states), *merged]

    def trained_samples(self) -> int | None:
        """Return how many samples workers have reported, if the engine has started and knows."""
        return None if self._engine is None else self._engine.trained_samples()

    def end(self, *, kill: bool) -> None:
        """Drop what the engine holds, and end the engine unless the caller made it."""
        if self._held:
            self.set_state(TrainingState())
        if self._engine is not self._callers_engine and self._engine is not None:
            self._engine.shutdown(kill=kill)
        self._engine = self._callers_engine

    def _end_tasks(self) -> None:
        """End tasks that were left running, and our own processes; keep the workers' states."""
        if self.engine.traits.interruptible:
            state = self.state()  # waits for a merge that still runs
            if self._callers_engine is not None:
                self._callers_engine.cancel()
            else:
                self.end(kill=True)
                self.set_state(state)


def _report_end(signal: str, model: TrainedModel) -> None:
    progress = "no round completed"
    if model.history:
        last = model.history[-1]
        progress = f"last complete round: {last['round']}"
        if "epoch" in last:
            progress += f", epoch {last['epoch']}"
    say(f"fit interrupted by {signal}; {progress}")
