"""``RoundWorkers``: the workers of one round, and the tasks that train them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compss_train.data.partitioning import Round, blocks_of
from compss_train.engines import Ref
from compss_train.model.schedule import LrSchedule, TimedHyperparameters
from compss_train.training.data_source import PublishedData
from compss_train.training.session import Session
from compss_train.training.total_shuffle import GroupSamples, cut_blocks, samples_of
from compss_train.worker.train import train_group, train_worker
from compss_train.worker.work import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundWorkers:
    """The workers of one round; submits the tasks that train them, in a session.

    In a total shuffle, tasks may cut the blocks before: their pieces serve this round only.
    """

    session: Session
    data: PublishedData
    job: Ref
    round: Round
    schedule: LrSchedule | None = None
    check_outputs: bool = False
    """Whether to check the outputs of the first batches against the loss, as in the first round of a fit."""
    traced: frozenset[int] = frozenset()
    """The workers that ``torch.profiler`` traces."""

    def active(self, group: int) -> list[int]:
        """Return the workers of a group that have samples in the round."""
        return [worker for worker in self.session.groups[group] if self.round.counts[worker]]

    def submit_group(
        self, group: int, parameters: Ref, moments: Ref | None, *, measured_apart: bool = False
    ) -> Sequence[Ref]:
        """Submit the training of a group; return the sum of its results, and with ``measured_apart`` measurements.

        ``moments`` are the optimizer moments that a worker without a state starts from.
        """
        if measured_apart:
            return self._submit(train_group, group, parameters, moments, True)
        return self._submit(train_group, group, parameters, moments, returns=2)

    def submit_worker(
        self, group: int, parameters: Ref, moments: Ref | None, server_address: Ref | None = None, samples: int = 0
    ) -> Sequence[Ref]:
        """Submit the training of a group's only active worker; return its result and its measurements."""
        return self._submit(train_worker, group, parameters, moments, server_address, samples)

    def _submit(
        self, task: Callable[..., Any], group: int, parameters: Ref, *more: Any, returns: int = 3
    ) -> Sequence[Ref]:
        """Submit a task that trains a group on its samples; return its results besides the workers' states."""
        samples = self._samples(group)
        args = samples.values, self._works(group, samples), *more
        return self.session.submit(group, task, self.job, parameters, *args, returns=returns)

    def _works(self, group: int, samples: GroupSamples) -> list[Work]:
        """Return the works of the active workers of a group on these samples."""
        first = self.session.groups[group].start
        files = self.data.source.files_of(samples.blocks)
        return [
            Work(
                block_passes=samples.assignments[worker - first],
                round=self.round.number,
                worker=worker,
                name=f"round {self.round.number} on worker {worker}",
                index_in_group=worker - first,
                device=self.session.device(worker),
                blocks=samples.blocks,
                starts=samples.starts,
                files=files,
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=self._hyperparameters(worker),
                check_outputs=self.check_outputs,
                traced=worker in self.traced,
            )
            for worker in self.active(group)
        ]

    def _hyperparameters(self, worker: int) -> dict[int, TimedHyperparameters] | None:
        """Return the hyperparameters of a worker by epoch; ``None`` without a schedule."""
        if self.schedule is None:
            return None
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]} or {self.round.last_epoch}
        span = self.round.span(worker)
        key = frozenset(epochs), span
        if key not in self._timed:
            self._timed[key] = {epoch: self.schedule.during(epoch, *span) for epoch in sorted(epochs)}
        return self._timed[key]

    @cached_property
    def _timed(self) -> dict[Any, dict[int, TimedHyperparameters]]:
        """The hyperparameters by epoch, which many workers share."""
        return {}

    def _samples(self, group: int) -> GroupSamples:
        """Return the samples of a group, as values of the engine."""
        if self._pieces:
            return self._pieces.pop(group)  # used by this task only
        assignments = self._share(self.session.groups[group])
        if not self._is_total:
            numbers = blocks_of(block_pass for own in assignments for block_pass in own)
            return GroupSamples(self.data.values(numbers), assignments, numbers)
        numbers = self.data.holding(samples_of(assignments))
        starts = tuple([self.data.starts[number] for number in numbers])
        return GroupSamples(self.data.values(numbers), assignments, numbers, starts)

    @property
    def _is_total(self) -> bool:
        """Whether the shuffle is total, so that passes list their samples."""
        first = next(filter(None, self.round.assignments), ())
        return bool(first) and first[0].sample_numbers is not None

    @cached_property
    def _pieces(self) -> dict[int, GroupSamples]:
        """The pieces of blocks for each group, in a total shuffle that cuts them."""
        if not self._is_total or self.data.mapped:
            return {}
        return dict(enumerate(cut_blocks(self.data, [self._share(group) for group in self.session.groups])))

    def _share(self, workers: range) -> Sequence[Any]:
        return self.round.assignments[workers.start : workers.stop]
