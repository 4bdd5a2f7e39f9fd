"""``Workplace``: the engine of a trainer, started on first use; ``Session``: what it holds for a built model."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from compss_train import worker
from compss_train._utils.validation import check_count, check_seconds
from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources, engine_class
from compss_train.exceptions import EngineClosedError
from compss_train.training.data_source import DataSource, PublishedData
from compss_train.training.fit import Fit
from compss_train.training.stopping import SIGTERM
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import TrainingState, fetch_states, state_refs
from compss_train.worker.state import GroupState, WorkerState

FLOPS_OF_WEIGHT = 6
"""Operations of a training step per weight and sample: two each for the forward pass and its two gradients."""

FLOPS_PER_SECOND = 1e10
"""Rough speed of a core; the training time decides how many workers share a task."""


class Session:
    """The published training spec, and each worker's device and state, in one engine."""

    def __init__(
        self, engine: Engine, model: TrainedModel, state: TrainingState, *, workers: int, threads: int
    ) -> None:
        built, num_gpu = model.built, model.built.num_gpu
        self.engine = engine
        self.names = built.training_spec.names
        self._spec = built.training_spec.without_weights()
        self.training_spec = engine.publish(self._spec)
        self.devices = [engine.device(worker, num_gpu) for worker in range(workers)]
        self.resources = Resources(cpus=threads, gpus=1 / -(-workers // num_gpu) if num_gpu else 0)
        weights = sum(parameter.numel() for parameter in built.training_spec.net.parameters())
        self.sample_seconds = FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * weights
        """Rough estimate of the time, in seconds, that a core trains on a sample."""
        self.groups = [range(worker, worker + 1) for worker in range(workers)]
        """The groups of workers, each of which trains in one task, one worker after another."""
        new = [WorkerState(None, worker_seed(model.seed, worker)) for worker in range(len(state.workers), workers)]
        self.states: list[GroupState | Ref] = [(each,) for each in (*state.workers[:workers], *new)]
        """The states of each group, which are one value of the engine; ``Workers.train`` replaces them."""
        self.merge_state = state.merge

    def regroup(self, groups: Sequence[range]) -> None:
        """Make the states of each group one value; waits for the states if workers were grouped differently."""
        if list(groups) != self.groups:
            states = fetch_states(self.engine, self.states)
            self.groups = [*groups]
            self.states = [tuple(states[worker] for worker in group) for group in groups]

    def state(self) -> TrainingState:
        """Return the state that the last fit left, waiting for the tasks that compute it."""
        return TrainingState(tuple(fetch_states(self.engine, self.states)), self.merge_state.fetched(self.engine))

    def free(self) -> None:
        """Free what the session holds, whoever still knows it: the engine goes on without it."""
        with suppress(EngineClosedError):
            self.engine.free([self.training_spec, *state_refs(self.states), *self.merge_state.refs()])

    def publish(self, source: DataSource) -> PublishedData:
        """Make samples available to tasks."""
        return PublishedData(self.engine, source, self._spec, self.training_spec)


class Workplace:
    """Where the workers of a trainer work; ``DistributedTrainer`` documents the arguments."""

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
        self.engine = self._given
        self.engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        own = None if self.engine is None else self.engine.threads
        fixed = own if threads is None else check_count("threads", threads)
        if num_workers is None:
            slots = 0 if self.engine is None else self.engine.slots(Resources(fixed or 1))
            num_workers = slots or self.engine_class.default_workers(fixed or 1)
        self.num_workers = check_count("num_workers", num_workers)
        self.threads = fixed or self.engine_class.thread_share(self.num_workers)
        self.worker_timeout = None if worker_timeout is None else check_seconds("worker_timeout", worker_timeout)
        self.session: Session | None = None
        self._saved_state = TrainingState()
        """What the next session starts from."""

    @contextmanager
    def working(self, *, fitting: bool = False) -> Iterator[Session]:
        """Provide the session, in a scope of the engine whose tasks end with an exception; start it if necessary.

        The tasks of a fit are watched. Its exceptions end the session, as do those of a dead engine. An exception
        in ``evaluate`` or ``predict`` does not, since the session holds the workers' states.
        """
        errors = BaseException if fitting else EngineClosedError
        with self._ended_by(errors):
            if self.engine is None:
                self.engine = self.engine_class.start(self.num_workers, self.threads, [worker.__name__])
            if self.session is None:
                with self.engine.scope():  # of its own: it stays when this call, or one around it, fails
                    self.session = Session(
                        self.engine, self.model, self._saved_state, workers=self.num_workers, threads=self.threads
                    )
                self._saved_state = TrainingState()
            timeout = self.worker_timeout if fitting else None
            # An engine of our own is shut down inside its scope, which then has nothing to wait for.
            with self.engine.scope(watched=fitting, timeout=timeout), self._ended_by(errors):
                yield self.session

    @contextmanager
    def _ended_by(self, errors: type[BaseException]) -> Iterator[None]:
        """End the session if such an exception leaves the block."""
        try:
            yield
        except errors:
            self.end(kill=True)
            raise

    @contextmanager
    def fitting(self, fit: Fit, samples: int | None) -> Iterator[Session]:
        """Provide the session for a fit, which callbacks, Ctrl-C and SIGTERM can stop; call its callbacks.

        ``samples`` is the number to train on, if known. Afterwards, the tasks of a fit that was stopped at once are
        ended, and after SIGTERM the process.
        """
        model = self.model
        with self.working(fitting=True) as session:
            model.stopped, model.fit = None, fit
            try:
                with fit.stopping.on_sigterm():
                    with fit.callbacks.fit(samples):
                        yield session
                    if fit.stopping.reason == SIGTERM:  # the end of the block raises ``SystemExit``
                        _report_end(SIGTERM, model)
                    elif fit.stopping.urgent:
                        self.end_keeping_states()
            except KeyboardInterrupt:
                _report_end("Ctrl-C", model)
                raise
            finally:
                model.fit = None

    def state(self) -> TrainingState:
        """Return what workers and merges keep from fit to fit."""
        return self._saved_state if self.session is None else self.session.state()

    def set_state(self, state: TrainingState) -> None:
        """Let the next session start from this state, in the same engine; workers without one in it start fresh."""
        self._end_session()
        self._saved_state = state

    def end(self, *, kill: bool) -> None:
        """End the session and its engine, unless the caller made that."""
        self._end_session()
        if self.engine is not self._given and self.engine is not None:
            self.engine.shutdown(kill=kill)
        self.engine = self._given

    def end_keeping_states(self) -> None:
        """End tasks that were left running, and our own processes; the states of the workers are kept."""
        if self.session is not None and self.session.engine.traits.interruptible:
            state = self.session.state()  # waits for a merge that still runs
            if self._given is not None:
                self._given.cancel()
            else:
                self.end(kill=True)
                self.set_state(state)

    def _end_session(self) -> None:
        if self.session is not None:
            self.session.free()
        self.session = None


def _report_end(how: str, model: TrainedModel) -> None:
    last = f"last complete round: {model.history[-1]['round']}" if model.history else "no round completed"
    print(f"compss_train: fit interrupted by {how}; {last}", file=sys.stderr)
