"""``StreamReader``: reads an ``IterableDataset`` in shards, as workers of a ``DataLoader`` do."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

from torch.utils.data import IterableDataset

from compss_train._utils.private_names import WorkerInfo, worker_info
from compss_train.data.collating import Collate
from compss_train.data.generators import generators_in
from compss_train.data.sample_reading import ReadBatch, Reseed, Rows, SampleReader, batch_of
from compss_train.data.sample_roles import Roles

_END = object()


@dataclass
class _Iteration:
    """One pass over a shard."""

    seed: int
    epoch: int
    worker: WorkerInfo
    initialize: Callable[[int], None] | None
    position: int = 0
    """Number of samples that have been read."""
    ended: bool = False
    iterator: Iterator[Any] | None = None

    def continues_at(self, seed: int, position: int) -> bool:
        """Return whether this iteration continues a pass at a position, or ended before it."""
        if self.seed != seed:
            return False
        return position == self.position or (self.ended and position > self.position)

    def samples(self, stop: int, reseed: Reseed) -> Iterator[Any]:
        """Iterate over the samples up to a position, or the end."""
        if self.iterator is None:
            if self.initialize is not None:
                self.initialize(self.worker.id)
            self.iterator = iter(self.worker.dataset)
        while self.position < stop and not self.ended:
            if self.position:
                reseed(self.position)
            sample = next(self.iterator, _END)
            if sample is _END:
                self.ended = True
            else:
                self.position += 1
                yield sample


@dataclass(eq=False)
class StreamReader(SampleReader):
    """Reads samples in sequence; a sample's number is the number of its shard.

    A shard's iterator is kept for the next batch. If that batch begins elsewhere, as after a resume
    or in another process, the shard is iterated over again and the samples before the batch are
    skipped. Each sample's random draws have their own seed, so that it is reproduced exactly.

    Parameters
    ----------
    shards:
        ``num_workers`` of ``torch.utils.data.get_worker_info()``, which the data set sees while it
        is read.
    initialize:
        The ``worker_init_fn`` of a ``DataLoader``, if any.
    counted:
        Whether the number of samples is known.
    drop_last:
        Whether to leave out a last batch that is smaller.
    """

    is_stream: ClassVar[bool] = True

    dataset: IterableDataset[Any]
    roles: Roles
    collate: Collate | None
    _: KW_ONLY
    shards: int
    initialize: Callable[[int], None] | None
    counted: bool
    drop_last: bool
    _iterations: dict[int, _Iteration] = field(default_factory=dict, init=False)

    @cached_property
    def generators(self) -> Sequence[Any]:
        """The random generators that the data set and its ``collate`` hold."""
        return generators_in((self.dataset, self.collate, self.initialize))

    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return a batch of the next samples of a shard: fewer at its end, and then none."""
        shard = int(numbers[0])
        seed = reseed(0)
        iteration = self._iterations.get(shard)
        if iteration is None or not iteration.continues_at(seed, position):
            iteration = self._begin(shard, seed, epoch)
            self._iterations[shard] = iteration
        with worker_info(iteration.worker):
            following = iteration.samples(position + len(numbers), reseed)
            samples = list(islice(following, max(0, position - iteration.position), None))
        if not samples or (self.drop_last and len(samples) < len(numbers)):
            return ReadBatch(None, None, 0)
        return batch_of(samples, self.roles, self.collate, collate=collate)

    def _begin(self, shard: int, seed: int, epoch: int) -> _Iteration:
        # Workers that share this process may modify the data set that they iterate over.
        dataset = copy.copy(self.dataset)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        worker = WorkerInfo(id=shard, num_workers=self.shards, seed=seed, dataset=dataset)
        return _Iteration(seed, epoch, worker, initialize=self.initialize)

    def has_ended(self, shard: int, epoch: int) -> bool:
        """Return whether the shard's pass of an epoch has ended."""
        iteration = self._iterations.get(shard)
        return iteration is not None and iteration.epoch == epoch and iteration.ended

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "generators"}
        return {**fields, "_iterations": {}}
