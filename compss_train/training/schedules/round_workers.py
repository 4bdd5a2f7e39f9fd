"""``RoundWorkers``: the work of each worker of a round, which it maps over tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any

from compss_train.data.partitioning import Round
from compss_train.engines import Ref
from compss_train.engines.mapping import Call, Chunk, MappedChunk, map_items
from compss_train.model.lr_schedule import TimedHyperparameters
from compss_train.training.hyperparameters import SetValues
from compss_train.training.published_data import PublishedData
from compss_train.training.session import Session
from compss_train.training.total_shuffle import ChunkSamples, cut_blocks, samples_of
from compss_train.worker.work import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundWorkers:
    """The workers of one round.

    In a total shuffle, tasks may cut the blocks before: their pieces serve this round only.
    """

    session: Session
    data: PublishedData
    job: Ref
    round: Round
    chunks: Sequence[range]
    """The workers that share a task where workers may, in order."""
    is_total: bool = False
    """Whether the shuffle is total, so that passes list their samples."""
    check_outputs: bool = False
    """Whether to check the outputs of the first batches against the loss."""
    traced: frozenset[int] = frozenset()
    """The workers that ``torch.profiler`` traces."""
    set_values: SetValues | None = None
    """The hyperparameters that were set and hold in this round, if any."""
    _timed: dict[Any, dict[int, TimedHyperparameters]] = field(default_factory=dict, init=False)
    """The hyperparameters by epoch, which many workers share."""

    @cached_property
    def members(self) -> dict[range, list[int]]:
        """The workers that have samples in this round, of each chunk that has such workers."""
        counts = self.round.counts
        of_chunks = {chunk: [worker for worker in chunk if counts[worker]] for chunk in self.chunks}
        return {chunk: workers for chunk, workers in of_chunks.items() if workers}

    def train(
        self,
        chunks: Sequence[range],
        task: Callable[..., Call],
        shared: Sequence[Any],
        *,
        combine: Any,
        parts: int = 1,
    ) -> list[MappedChunk]:
        """Submit the task of each chunk, which trains its workers; the session keeps their states.

        ``shared`` are what follows the job in the arguments of ``task``.
        """
        session = self.session
        mapped = map_items(
            session.engine,
            task,
            [self.job, *shared],
            map(self._chunk, chunks),
            combine=combine,
            parts=parts,
            states_apart=session.states_apart,
            resources=session.resources,
        )
        for chunk, of_chunk in zip(chunks, mapped, strict=True):
            for worker, state in zip(self.members[chunk], of_chunk.states, strict=True):
                session.states[worker] = state
        return mapped

    def _chunk(self, chunk: range) -> Chunk:
        """Return what the task of a chunk gets."""
        members = self.members[chunk]
        samples = self._samples(chunk)
        files = self.data.source.files_of(samples.blocks)
        works = [
            Work(
                block_passes=samples.assignments[worker - chunk.start],
                round=self.round.number,
                worker=worker,
                name=f"round {self.round.number} on worker {worker}",
                device=self.session.device(worker),
                blocks=samples.blocks,
                starts=samples.starts,
                files=files,
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=self._hyperparameters(worker),
                attributes=None if self.set_values is None else self.set_values.attributes,
                check_outputs=self.check_outputs,
                traced=worker in self.traced,
            )
            for worker in members
        ]
        states = [self.session.states[worker] for worker in members]
        return Chunk(items=works, states=states, values=samples.values)

    def _hyperparameters(self, worker: int) -> dict[int, TimedHyperparameters] | None:
        """Return the hyperparameters of a worker by epoch, or ``None`` for those of ``build``."""
        schedule = self.session.model.built.lr_schedule
        if schedule is None and self.set_values is None:
            return None
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]}
        epochs = epochs or {self.round.last_epoch}
        span = self.round.spans[worker] if self.round.spans else (Fraction(0), Fraction(1))
        key = frozenset(epochs), span
        if key not in self._timed:
            self._timed[key] = {epoch: self._in_epoch(epoch, span) for epoch in sorted(epochs)}
        return self._timed[key]

    def _in_epoch(self, epoch: int, span: tuple[Fraction, Fraction]) -> TimedHyperparameters:
        """Return the hyperparameters between two fractions of an epoch."""
        schedule = self.session.model.built.lr_schedule
        values = self.set_values
        if schedule is not None:
            timed = schedule.during(epoch, *span)
            return timed if values is None else values.over_timed(timed, schedule)
        return () if values is None else ((Fraction(0), values.groups),)

    def _samples(self, chunk: range) -> ChunkSamples:
        """Return the samples of the workers of a chunk."""
        if self.is_total and self._pieces:
            return self._pieces.pop(chunk)  # used by this task only
        assignments = self.round.assignments[chunk.start : chunk.stop]
        if not self.is_total:
            passes = chain.from_iterable(assignments)
            # Each once, in order of first use.
            numbers = tuple(dict.fromkeys(block_pass.block for block_pass in passes))
            return ChunkSamples(self.data.values(numbers), assignments, numbers)
        numbers = self.data.holding(samples_of(assignments))
        starts = tuple([self.data.starts[number] for number in numbers])
        return ChunkSamples(self.data.values(numbers), assignments, numbers, starts)

    @cached_property
    def _pieces(self) -> dict[range, ChunkSamples]:
        """The pieces of blocks for each chunk, in a total shuffle that cuts them."""
        if self.data.mapped:
            return {}
        shares = [self.round.assignments[chunk.start : chunk.stop] for chunk in self.chunks]
        return dict(zip(self.chunks, cut_blocks(self.data, shares), strict=False))
