"""``Workers``: the workers of a fit, and the tasks that train them in its rounds."""

from collections.abc import Callable, Sequence
from typing import Any

from compss_train.data.block_passes import WorkerAssignment, blocks_of
from compss_train.data.partitioning import Round
from compss_train.engines import Ref
from compss_train.model.schedule import TimedHyperparameters
from compss_train.model.weighted_mean import ranges_for_costs
from compss_train.training.fit import FitOfEpochs
from compss_train.training.total_shuffle import samples_of, submit_cuts
from compss_train.training.trained_model import TrainedModel
from compss_train.training.workplace import Session
from compss_train.worker.gpu_rows import rows_on_gpus
from compss_train.worker.train import train_group, train_worker
from compss_train.worker.work import Work


class Workers:
    """The workers of one fit; submits the tasks that train them.

    Parameters
    ----------
    session:
        Holds the workers' devices and states. Whenever a group of workers trains, its state is replaced by a
        reference to a new one.
    fit, model:
        What is trained on which samples, which are published.
    """

    def __init__(self, session: Session, fit: FitOfEpochs, model: TrainedModel) -> None:
        self._session, self._engine = session, session.engine
        self._regroup(fit)
        self._schedule, self._callbacks = model.built.lr_schedule, fit.callbacks
        self.data = session.publish(fit.data)
        last, gpus = fit.epochs.stop - 1, session.resources.gpus
        self._work = Work(fit.options.for_workers(fit.data, model.seed, last, gpus, fit.callbacks.in_workers))
        """What the workers have in common in the round."""
        self._is_first = True

    def _regroup(self, fit: FitOfEpochs) -> None:
        """Let several workers share a task if a task costs more time than a worker trains."""
        source, options = fit.data, fit.options
        workers, resources, engine = len(self._session.devices), self._session.resources, self._engine
        sharing = min(source.shares(options.order), workers)
        # Each worker has its own task if it merges by itself, if sums would have more bytes than compressed
        # changes, and on GPUs, which workers share in another order.
        may_share = options.merge.kind == "synchronous" and options.merge.dtype is None and not resources.gpus
        slots = engine.slots(resources) if may_share else 0
        seconds = self._session.sample_seconds * options.worker_samples(source.sizes, sharing)
        active = ranges_for_costs(sharing, slots, seconds, engine.traits.task_seconds)
        self._session.regroup([*active, *(range(n, n + 1) for n in range(sharing, workers))])

    def set_round(self, round_: Round) -> None:
        """Note the round that ``train`` submits next; in a total shuffle submit the tasks that cut blocks."""
        self._work = self._work._replace(round=round_.number, check_outputs=self._is_first)
        self.round, self._is_first = round_, False
        self._traced = frozenset(self._callbacks.traced(round_.number))
        self._hyperparameters: dict[Any, dict[int, TimedHyperparameters]] = {}
        first = next(filter(None, round_.assignments), ())
        self._shuffled = bool(first) and first[0].sample_numbers is not None
        self._pieces: list[tuple[list[Ref], list[Work]]] = []
        """In a total shuffle, the pieces of each group, which serve this round only, and its workers' works."""
        if self._shuffled and not self.data.mapped:
            shares = [self._share(group) for group in range(len(self._session.groups))]
            self._pieces = submit_cuts(self.data, shares, self._work)

    def train(
        self, group: int, parameters: Ref, moments: Ref | None, *, measured_apart: bool = False
    ) -> Sequence[Ref]:
        """Submit the training of a group; return the sum of its results, and with ``measured_apart`` measurements.

        ``moments`` are the optimizer moments that a worker without a state starts from.
        """
        if measured_apart:
            return self._submit(train_group, group, parameters, moments, True)
        return self._submit(train_group, group, parameters, moments, returns=2)

    def train_worker(
        self, group: int, parameters: Ref, moments: Ref | None, server_address: Ref | None = None, samples: int = 0
    ) -> Sequence[Ref]:
        """Submit the training of a group's only active worker; return its result and its measurements."""
        return self._submit(train_worker, group, parameters, moments, server_address, samples)

    def _submit(
        self, task: Callable[..., Any], group: int, parameters: Ref, *more: Any, returns: int = 3
    ) -> Sequence[Ref]:
        """Submit a task of a group, and keep the states that it returns; return its other results."""
        values, works = self._task_of(group)
        states, resources = self._session.states, self._session.resources
        args = self.data.training_spec, parameters, states[group], values, works, *more
        result, states[group], *others = self._engine.submit(task, *args, returns=returns, resources=resources)
        if self._pieces:  # used by this task only
            self._pieces[group] = [], []
        return [result, *others]

    def active(self, group: int) -> list[int]:
        """Return the workers of a group that have samples in the round."""
        return [worker for worker in self._session.groups[group] if self.round.counts[worker]]

    def release(self) -> None:
        """Release what the tasks of the fit keep on GPUs in this process; other processes do when they are idle."""
        if (resident := self._work.options.resident) is not None:
            rows_on_gpus().release(resident.fit)

    def _task_of(self, group: int) -> tuple[Sequence[Ref], list[Work]]:
        """Return the values that the task of a group receives, and the work of its workers."""
        active = self.active(group)
        values, works = self._inputs(group)
        first = self._session.groups[group].start
        return values, [
            works[worker - first]._replace(
                worker=worker,
                index_in_group=worker - first,
                device=self._session.devices[worker],
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=self._timed(worker),
                traced=worker in self._traced,
            )
            for worker in active
        ]

    def _timed(self, worker: int) -> dict[int, TimedHyperparameters] | None:
        """Return the hyperparameters of a worker by epoch, shared by many workers; ``None`` without a schedule."""
        if self._schedule is None:
            return None
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]} or {self.round.last_epoch}
        span = self.round.span(worker)
        key = frozenset(epochs), span
        if key not in self._hyperparameters:
            self._hyperparameters[key] = {epoch: self._schedule.during(epoch, *span) for epoch in sorted(epochs)}
        return self._hyperparameters[key]

    def _inputs(self, group: int) -> tuple[list[Ref], list[Work]]:
        """Return the values of a group's task, and the works of its workers on them."""
        if self._pieces:
            return self._pieces[group]
        assignments = self._share(group)
        numbers = (
            self.data.holding(samples_of(assignments))
            if self._shuffled
            else blocks_of(block_pass for own in assignments for block_pass in own)
        )
        work = self.data.source.work_on(numbers, self._work)
        if self._shuffled:
            work = work._replace(starts=tuple([self.data.starts[number] for number in numbers]))
        return self.data.values(numbers), [work._replace(block_passes=own) for own in assignments]

    def _share(self, group: int) -> Sequence[WorkerAssignment]:
        workers = self._session.groups[group]
        return self.round.assignments[workers.start : workers.stop]
