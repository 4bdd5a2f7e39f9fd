"""Batches are prepared ahead of the training step: read, copied to the device and transformed in a thread."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import torch

from compss_train._utils.closing import Closable
from compss_train._utils.nested import leaves
from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.block_passes import Place
from compss_train.data.order import transform_seed
from compss_train.model.devices import is_gpu
from compss_train.model.random_state import RandomState, random_state, seed_generators
from compss_train.model.torch_draws import CannotRedirectError, TorchDraws
from compss_train.model.training_spec import ModelReplica
from compss_train.worker.batches import Batch, PlacedBatch
from compss_train.worker.collating import collated
from compss_train.worker.device_copies import CopyStream

_AHEAD = 2
"""Batches that are ready or being prepared while the model trains on another."""

_WORTH_SECONDS = 2e-4
"""What a transform has to take for a thread: handing a batch from thread to thread takes about half of it."""


class _Ready(NamedTuple):
    """A batch that is prepared as far as it can be beside the training steps."""

    place: Place
    batch: Batch
    copied: torch.cuda.Event | None
    """When the copies to a GPU and the transform on it have ended."""


Seeding: TypeAlias = Callable[[int], None]
"""Sets the seed of the draws that follow."""


class _ProcessDraws:
    """The generators of the process, seeded; sees whether others than torch's were used, or torch seeded."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._seeded: tuple[int, RandomState] | None = None
        self._only_torch = True

    @property
    def current(self) -> int:
        """The seed."""
        return 0 if self._seeded is None else self._seeded[0]

    def seed(self, seed: int) -> None:
        """Seed all generators."""
        self._only_torch = self.only_torch
        seed_generators(seed, self._device)
        self._seeded = seed, RandomState.capture("cpu")

    @property
    def only_torch(self) -> bool:
        """Whether only torch's generator has been used, with these seeds."""
        if self._seeded is None or not self._only_torch:
            return self._only_torch
        seed, state = self._seeded
        return torch.initial_seed() == seed and RandomState.capture("cpu").is_same_outside_torch(state)


class Preparation:
    """Transforms batches, in a thread beside the training steps as far as this does not change any bits.

    Random draws of the transforms are seeded by the fit's seed and the place of the batch, or of the sample for a
    ``train_transform`` by sample: they depend neither on the worker nor on what was trained before, and leave the
    generators of the network alone. In the thread, torch draws from generators of their own. A transform has its
    turn between two steps instead if it draws from the generators of numpy or Python, which threads share, seeds
    torch itself, or draws from torch where no generator can be given. The first batch shows what it draws from, and
    whether a thread is worth it; the last kind of draw is seen in later batches, too.

    Parameters
    ----------
    replica:
        The model copy whose ``train_transform``, ``transform`` and device are used.
    seed:
        Seed of the fit.
    ragged:
        Whether batches have sequences of different lengths.
    """

    def __init__(self, replica: ModelReplica, seed: int, *, ragged: bool = False) -> None:
        self._replica, self._seed = replica, seed
        self._augment = replica.training_spec.train_transform
        spec = replica.training_spec
        functions = spec.collate, self._augment, spec.transform, spec.samples
        self._transforms = ragged or any(each is not None for each in functions)
        self._takes_turns = False
        self._seconds: float | None = None  # that the transform of the first batch took
        self._stream = CopyStream(replica.device)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do: a transform, or copies to a GPU."""
        return self._transforms or is_gpu(self._replica.device)

    @property
    def is_worth_a_thread(self) -> bool:
        """Whether there is enough to do for a thread, as far as the batches so far have shown."""
        if self._transforms and not self._takes_turns:
            return self._seconds is not None and (self._seconds >= _WORTH_SECONDS or is_gpu(self._replica.device))
        return is_gpu(self._replica.device)

    def read(self, batches: Iterable[PlacedBatch]) -> Iterator[PlacedBatch]:
        """Iterate over batches in the thread; copies to a GPU are in the thread's stream."""
        remaining = iter(batches)
        while True:
            with self._stream.entered():  # of this thread, which may not be the one that closes the iterator
                placed = next(remaining, None)
            if placed is None:
                return
            yield placed

    def begin_copying(self, place: Place, batch: Batch) -> _Ready:
        """Copy a batch of the CPU's memory to the device in the thread, and transform it."""
        with self._stream.entered():
            moved = batch.to(self._replica.device)
        return self.begin((place, moved))

    def begin(self, placed: PlacedBatch) -> _Ready:
        """Transform a batch, or leave it to ``finish``; the first one before there are other threads."""
        place, batch = placed
        with self._stream.entered():
            if self._transforms and not self._takes_turns:
                batch = (self._transformed_first if self._seconds is None else self._beside)(place, batch)
            return _Ready(place, batch, self._stream.record())

    def finish(self, ready: _Ready) -> PlacedBatch:
        """Return a batch, transformed, in the thread and stream of the training steps."""
        place, batch, copied = ready
        self._stream.wait(copied, leaves(batch.parts))
        if self._transforms and batch.samples_before is None:
            device = self._replica.device
            with random_state(self._seed_of(place), device):
                batch = self._transformed(place, batch, lambda seed: seed_generators(seed, device))
        return place, batch

    def _seed_of(self, place: Place, sample: int = 0) -> int:
        return transform_seed(self._seed, place.epoch, place.block, place.position + sample)

    def _transformed_first(self, place: Place, batch: Batch) -> Batch:
        """Transform the first batch from the process's generators, and see which of them it uses."""
        process = _ProcessDraws(self._replica.device)
        draws = TorchDraws(lambda: process.current, redirect=False)
        with random_state(0, self._replica.device):
            process.seed(self._seed_of(place))
            with draws:
                began = time.perf_counter()
                batch = self._transformed(place, batch, process.seed)
                self._seconds = time.perf_counter() - began
            self._takes_turns = not (process.only_torch and draws.can_be_redirected)
        return batch

    def _beside(self, place: Place, batch: Batch) -> Batch:
        """Transform a batch, or leave it and the next ones to ``finish`` if a draw cannot be redirected."""
        versions = _versions(batch)
        try:
            with TorchDraws(lambda: self._seed_of(place)) as draws:
                return self._transformed(place, batch, draws.restart)
        except CannotRedirectError as error:
            if _versions(batch) != versions:
                raise RuntimeError(
                    f"the transform changed a batch in place, and then drew as it did not for the first: {error}; "
                    "let it make a new tensor instead of changing the batch"
                ) from error
            self._takes_turns = True
            return batch

    def _transformed(self, place: Place, batch: Batch, seed: Seeding) -> Batch:
        def reseed(position: int) -> int:
            chosen = self._seed_of(place._replace(position=position))
            seed(chosen)
            return chosen

        batch = collated(self._replica, place, batch, reseed)
        before = batch.samples
        if not before:
            return batch
        if self._replica.training_spec.samples is not None:
            seed(self._seed_of(place))  # the draws of transforms are those of a batch that was not read
        x, y = batch.x, batch.y
        with self._replica.annotate_errors(x, y, own_target=y is None), self._replica.autocast():
            if self._augment is not None:
                x, y = self._augment(x, y, lambda sample: seed(self._seed_of(place, sample)))
            return batch._replace(samples_before=before, x=self._replica.transformed(x), y=y)


def _versions(batch: Batch) -> list[int]:
    """Return numbers that an operation in place raises."""
    return [part._version for part in leaves(batch.parts)]


@contextmanager
def prefetched(
    batches: Iterator[PlacedBatch], replica: ModelReplica, seed: int, *, ragged: bool = False
) -> Iterator[Iterator[PlacedBatch]]:
    """Open an iterator over batches, transformed; a few are prepared ahead if that is worth a thread."""
    preparation = Preparation(replica, seed, ragged=ragged)
    if not preparation.has_work:
        yield batches
        return
    remaining = preparation.read(batches)
    first = iter([preparation.begin(placed) for placed in islice(remaining, 1)])
    if not preparation.is_worth_a_thread:
        yield filter(_has_samples, map(preparation.finish, chain(first, map(preparation.begin, remaining))))
        return
    with ReadAhead(remaining, preparation.begin, depth=_AHEAD) as ready:
        yield filter(_has_samples, map(preparation.finish, chain(first, ready)))


def _has_samples(placed: PlacedBatch) -> bool:
    """Return whether there is anything in a batch: a stream may have ended before it."""
    return placed[1].samples_before != 0


class PreparingThread(Closable):
    """Prepares batches that are put in one by one, a few ahead of those that are taken, in the same order.

    Where a thread is not worth it, and at first, each batch is taken before the next one is put.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[Future[_Ready] | _Ready] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def full(self) -> bool:
        """Whether a batch is to be taken before the next one is put."""
        return len(self._pending) > (0 if self._pool is None else _AHEAD)

    def put(self, place: Place, batch: Batch) -> None:
        """Begin with a batch in the CPU's memory."""
        if self._pool is None and self._preparation.is_worth_a_thread:
            self._pool = ThreadPoolExecutor(1, "prepare-batches")
        if self._pool is None:
            self._pending.append(self._preparation.begin_copying(place, batch))
        else:
            self._pending.append(self._pool.submit(self._preparation.begin_copying, place, batch))

    def take(self) -> Batch:
        """Return the next batch as soon as it is prepared; raises what its transform raised."""
        ready = self._pending.popleft()
        return self._preparation.finish(ready.result() if isinstance(ready, Future) else ready)[1]

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
