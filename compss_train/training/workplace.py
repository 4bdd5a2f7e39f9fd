"""``Workplace``: the engine of a trainer, which starts on first use, and the session in it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from compss_train import worker
from compss_train._utils.validation import check_count, check_seconds
from compss_train.engines import Engine, Ref, engine_class
from compss_train.engines.base import Resources
from compss_train.exceptions import EngineClosedError
from compss_train.model.parameters import Parameters
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.data_source import DataSource
from compss_train.training.inference import Inference
from compss_train.training.session import Session
from compss_train.training.stopping import TERMINATED
from compss_train.training.trained_model import Fit, TrainedModel
from compss_train.training.training_state import TrainingState

MAX_WORKERS = 100_000
"""Maximum number of workers of a trainer: each has a state, and a place in the plan of every round."""


class Workplace:
    """Where the workers of a trainer work; ``DistributedTrainer`` documents the arguments."""

    def __init__(
        self,
        num_workers: int | None,
        engine: str | Engine,
        threads: int | None,
        worker_timeout: float | None,
        seed: Callable[[], int],
    ) -> None:
        """``seed`` is a function that returns the seed of new workers."""
        self._given = engine if isinstance(engine, Engine) else None
        self.engine = self._given
        self.engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        own = None if self.engine is None else self.engine.threads
        fixed = own if threads is None else check_count("threads", threads)
        if num_workers is None:
            places = 0 if self.engine is None else self.engine.places(Resources(fixed or 1))
            num_workers = places or self.engine_class.default_workers(fixed or 1)
        self.num_workers = check_count("num_workers", num_workers)
        if self.num_workers > MAX_WORKERS:
            raise ValueError(f"num_workers={num_workers}: give at most {MAX_WORKERS} workers, one a block or fewer")
        self.threads = fixed or self.engine_class.thread_share(self.num_workers)
        self.worker_timeout = None if worker_timeout is None else check_seconds("worker_timeout", worker_timeout)
        self._seed = seed
        self.session: Session | None = None
        self._saved_state = TrainingState()
        """What the next session starts from."""

    @contextmanager
    def working(self, built: BuildArguments, *, fitting: bool = False) -> Iterator[Session]:
        """Provide the session; start it if necessary.

        Exceptions that leave tasks running (in a fit, Ctrl-C, a dead engine) end the session. An exception in
        ``evaluate`` or ``predict`` does not, since the session holds the workers' states.
        """
        try:
            if self.engine is None:
                self.engine = self.engine_class.start(self.num_workers, self.threads, [worker.__name__])
            if self.session is None:
                self.session = Session(
                    engine=self.engine,
                    training_spec=built.training_spec,
                    devices=[self.engine.device(n, built.num_gpu) for n in range(self.num_workers)],
                    state=self._saved_state,
                    seed=self._seed(),
                    threads=self.threads,
                    num_gpu=built.num_gpu,
                )
                self._saved_state = TrainingState()
            yield self.session
        except BaseException as error:
            if fitting or not isinstance(error, Exception) or isinstance(error, EngineClosedError):
                self.end(kill=True)
            raise

    @contextmanager
    def fitting(self, fit: Fit, model: TrainedModel, samples: int | None) -> Iterator[Session]:
        """Provide the session for a fit, which callbacks, Ctrl-C and SIGTERM can stop; call its callbacks.

        ``samples`` is the number to train on, if known. Afterwards, the tasks of a fit that was stopped at once are
        ended, and after SIGTERM the process.
        """
        with self.working(model.built, fitting=True) as session:
            model.stopped, model.fit = None, fit
            try:
                with fit.stopping.on_sigterm():
                    with fit.callbacks.fit(samples):
                        yield session
                    if fit.stopping.terminated:
                        _report_end("SIGTERM", model)
                        raise SystemExit(TERMINATED)
                    if fit.stopping.urgent:
                        self.end_keeping_states()
            except KeyboardInterrupt:
                _report_end("Ctrl-C", model)
                raise
            finally:
                model.fit = None

    @contextmanager
    def inference(
        self, built: BuildArguments, parameters: Parameters, data: DataSource, batch_size: int | None
    ) -> Iterator[tuple[Inference, Ref]]:
        """Provide the inference tasks on these samples, and the published parameters."""
        if batch_size is not None:
            check_count("batch_size", batch_size)
        with self.working(built) as session:
            inference = Inference(session, data, batch_size)
            published = session.engine.publish(parameters)
            try:
                yield inference, published
            finally:
                with suppress(EngineClosedError):
                    session.engine.delete([published])
                    inference.data.delete()

    def state(self) -> TrainingState:
        """Return what workers and merges keep from fit to fit."""
        return self._saved_state if self.session is None else self.session.state()

    def set_state(self, state: TrainingState) -> None:
        """Continue from this state; workers without a state in it start fresh."""
        if self.session is None:
            self._saved_state = state
        else:
            self.session.set_state(state, self._seed())

    def forget(self) -> None:
        """End the session of a network that is replaced by another; the engine stays."""
        self._saved_state = TrainingState()
        if self.session is not None:
            self.session.close()
            self.session = None

    def end(self, *, kill: bool) -> None:
        """End the session and its processes; an engine that the user provided only with ``kill``."""
        session, self.session = self.session, None
        if self.engine is not None and (self._given is None or kill):
            self.engine.shutdown(kill=kill)
        elif session is not None:
            session.close()
        self.engine = self._given

    def end_keeping_states(self) -> None:
        """End processes whose tasks were left running; the next session starts from the states of the workers."""
        if self._given is None and self.session is not None:
            state = self.session.state()
            self.end(kill=True)
            self.set_state(state)


def _report_end(how: str, model: TrainedModel) -> None:
    last = f"last complete round: {model.history[-1]['round']}" if model.history else "no round completed"
    print(f"compss_train: fit interrupted by {how}; {last}", file=sys.stderr)
