"""``Draws``: the batches that a worker draws from a buffer which merges do not empty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from compss_train.data.block_passes import Batching, WorkerAssignment, batch_sizes, cut_assignment

PutCounts: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""A function of batch sizes that returns how many samples are put before each draw.

The batches hold a worker's samples once. A buffer that gives every sample several times draws that
many times more batches, with a count for each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Batches that a worker draws from a buffer in an epoch, or in a round inside it.

    Merges inside an epoch do not empty the buffer, so that they do not change the batches.
    """

    epoch: int
    origin: int
    """The block of the first pass of the epoch, which determines the draws."""
    total: int
    """Samples of the worker in the epoch."""
    largest: int
    """Size of the largest batch of the epoch."""
    sizes: tuple[int, ...]
    """Sizes of the batches."""
    puts: tuple[int, ...]
    """For each batch, how many samples of the epoch have been put before it is drawn."""
    drawn: int = 0
    """Samples of the epoch in the batches before these."""
    put_before: int = 0
    """How many samples of the epoch were put for the batches before these."""
    is_first: bool = True
    """Whether the first of these batches is the first one of the epoch."""
    is_last: bool = True
    """Whether the last of these batches is the last one of the epoch."""

    @classmethod
    def of_epoch(
        cls, assignment: WorkerAssignment, batching: Batching, put_counts: PutCounts
    ) -> Self:
        """Return the draws of all batches of a worker's passes over the blocks of one epoch."""
        sizes = tuple(batch_sizes(assignment, batching))
        first = assignment[0]
        puts = tuple(put_counts(sizes))
        return cls(
            epoch=first.epoch,
            origin=first.block,
            total=sum(sizes),
            largest=max(sizes),
            sizes=sizes * (len(puts) // len(sizes)),
            puts=puts,
        )

    def part(self, first: int, stop: int) -> Self:
        """Return the draws of batches ``first`` to ``stop``; both may be beyond the epoch's end."""
        return replace(
            self,
            sizes=self.sizes[first:stop],
            puts=self.puts[first:stop],
            drawn=self.drawn + sum(self.sizes[:first]),
            put_before=self.puts[:first][-1] if first else 0,
            is_first=first == 0,
            is_last=stop >= len(self.sizes),
        )

    @property
    def samples(self) -> int:
        """Number of samples in these batches."""
        return sum(self.sizes)

    def put_of(self, assignment: WorkerAssignment) -> WorkerAssignment:
        """Return the parts of a worker's passes over the epoch that are put for these batches."""
        return cut_assignment(assignment, self.put_before, self.puts[-1]) if self.puts else ()
