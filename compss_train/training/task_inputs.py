"""``RoundInputs``: the blocks, pieces of blocks or files that the tasks of a round receive."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train.data.block_passes import WorkerAssignment, blocks_of
from compss_train.data.order import split_points
from compss_train.data.partitioning import Round
from compss_train.data.pieces import Pieces, cut_into_pieces
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.training.data_handles import DataHandles
from compss_train.worker import Reading, split_rows

LEAST_CHUNKS = 16
"""In at least so many tasks blocks are cut, so that a task has a sixteenth of the data in memory at most."""

MOST_PIECES = 64
"""On average a worker receives at most so many pieces, as long as there are not fewer chunks than these."""


class TaskInputs(NamedTuple):
    """What a task on some workers receives."""

    assignments: Sequence[WorkerAssignment]
    """Of each worker of the group; in pieces samples have other numbers."""
    reading: Reading
    values: Sequence[Ref] = ()
    """Blocks of x, then of y and of weights; or pieces, which are used in one round only."""


class RoundInputs:
    """The inputs of one round, by groups of workers. In a total shuffle the tasks that cut pieces are submitted."""

    def __init__(
        self, engine: Engine, data: DataHandles, reading: Reading, groups: Sequence[range], round_: Round
    ) -> None:
        self._engine = engine
        self._reading = reading
        self._data = data
        self._groups = groups
        self._assignments = round_.assignments
        first = next(filter(None, round_.assignments), ())
        self._shuffled = bool(first) and first[0].samples is not None
        self._pieces: list[TaskInputs] = []
        if self._shuffled and not data.mapped:
            self._pieces = self._cut()

    @property
    def once(self) -> bool:
        """Whether the values are used in one task only."""
        return bool(self._pieces)

    def of(self, group: int, upcoming: Iterable[Sequence[int]] = ()) -> TaskInputs:
        """Return the inputs of a group; ``upcoming`` are the first files of its workers' next tasks."""
        if self._pieces:
            return self._pieces[group]
        assignments = self._share(group)
        numbers = (
            self._data.holding(_samples_of(assignments))
            if self._shuffled
            else blocks_of(chain.from_iterable(assignments))
        )
        x, others = self._data.select(numbers, list(chain.from_iterable(upcoming)))
        if isinstance(x, FilePart):
            return TaskInputs(assignments, replace(self._reading, blocks=numbers, files=x))
        starts = tuple([self._data.starts[number] for number in numbers]) if self._shuffled else ()
        return TaskInputs(assignments, replace(self._reading, blocks=numbers, starts=starts), [*x, *others])

    def _share(self, group: int) -> Sequence[WorkerAssignment]:
        workers = self._groups[group]
        return self._assignments[workers.start : workers.stop]

    def _cut(self) -> list[TaskInputs]:
        """Submit tasks that cut blocks into pieces; return the inputs of each group.

        Nothing is cut if the groups need more than half of all samples, as in a round of several epochs: the pieces
        would be many copies of the data.
        """
        shares = [self._share(group) for group in range(len(self._groups))]
        samples = [_samples_of(share) for share in shares]
        chunks = self._chunks(len(shares))
        cut = cut_into_pieces(samples, [self._data.starts[chunk.start] for chunk in chunks])
        if 2 * cut.rows > sum(map(bool, map(len, samples))) * sum(self._data.sizes):
            return []
        refs: list[list[Ref]] = [[] for _ in shares]
        sizes: list[list[int]] = [[] for _ in shares]
        for chunk, pieces in zip(chunks, cut.chunks, strict=True):
            made = self._split(chunk, pieces)
            for group, ref, size in zip(pieces.groups, made, np.diff(pieces.bounds).tolist(), strict=True):
                refs[group].append(ref)
                sizes[group].append(size)
        return [
            TaskInputs(
                _renumbered(share, numbers),
                replace(self._reading, starts=tuple(accumulate(lengths[:-1], initial=0)) if lengths else ()),
                values,
            )
            for share, numbers, values, lengths in zip(shares, cut.numbers, refs, sizes, strict=True)
        ]

    def _chunks(self, groups: int) -> list[range]:
        """Return the blocks that each task cuts: enough tasks for all places, but no pieces without number."""
        blocks, places = len(self._data.sizes), self._engine.places(Resources())
        most = max(LEAST_CHUNKS, MOST_PIECES * len(self._assignments) // groups)
        number = min(blocks, max(LEAST_CHUNKS, 2 * places), most)
        return [range(*bounds) for bounds in pairwise(split_points(blocks, number))]

    def _split(self, chunk: range, pieces: Pieces) -> list[Ref]:
        if not pieces.groups:
            return []
        x, others = self._data.select(chunk)
        first, number = self._data.starts[chunk.start], len(pieces.groups)
        starts = [self._data.starts[block] - first for block in chunk]
        made = self._engine.submit(split_rows, [*x, *others], starts, pieces.rows, pieces.bounds, returns=number)
        return list(made) if number > 1 else [made]


def _samples_of(assignments: Iterable[WorkerAssignment]) -> NDArray[Any]:
    """Return the numbers of the samples that a total shuffle gives to workers, in their order."""
    passes = chain.from_iterable(assignments)
    samples = [block_pass.samples for block_pass in passes if block_pass.samples is not None]
    if len(samples) == 1:
        return samples[0]
    return np.concatenate(samples) if samples else np.empty(0, np.int64)


def _renumbered(assignments: Sequence[WorkerAssignment], numbers: NDArray[Any]) -> list[WorkerAssignment]:
    """Return the assignments of workers that have samples, with these numbers in place of those of the samples."""
    renumbered, start = [], 0
    for assignment in assignments:
        passes = []
        for block_pass in assignment:
            passes.append(block_pass.with_samples(numbers[start : start + block_pass.size]))
            start += block_pass.size
        renumbered.append(tuple(passes))
    return renumbered
