"""``PartialShuffleSampler``: batches of samples from many files, read sequentially and shuffled in
pools.

The other samplers are drop-in replacements for those of
microsoft/PartiallyShuffleDistributedSampler that run on current PyTorch.
"""

import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from types import FrameType
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import Sampler

from compss_train._utils.private_names import fetched_ahead
from compss_train._utils.validation import check_choice, check_count, check_seed, warn_user
from compss_train.data.files import FileDataset
from compss_train.data.order import (
    RowRange,
    partial_shuffle_generator,
    rank_row_ranges,
    rows_of_rank,
)
from compss_train.data.readers import Arrays, CustomReader, Reader
from compss_train.samplers.loader import FileLoader, FileReads, FileRows
from compss_train.samplers.mixing import Chunk, SlotStore, shuffled_batches
from compss_train.samplers.pools import PartialShuffle, Pools


class PartialShuffleSampler(Sampler[Any]):
    """Yields the batches of one rank in an epoch: dicts of arrays with one row per sample.

    In every epoch the files are reordered and split into ``ceil(samples / num_replicas)`` samples
    per rank. A rank reads its share file by file, a few files ahead, and shuffles the samples in
    one or two pools. The order depends only on the seed, the epoch and the position. To give all
    ranks the same number of samples, up to ``num_replicas
    - 1`` samples are used twice, or dropped with ``drop_last``.

    The sampler yields the samples themselves. Use it in a ``DataLoader`` as
    ``DataLoader(dataset, sampler=sampler, batch_size=None)``, which converts the arrays to tensors.

    Parameters
    ----------
    dataset:
        A ``FileDataset``, or any object with a list of files in ``.files``. Its method ``reset()``,
        if it has one, is called at the start of each epoch.
    reader:
        A function ``reader(filename, get_data=False)``; ``None`` (default) for the reader of the
        file format. A ``FileDataset`` has its own.
    num_replicas, rank:
        Number of ranks, and the number of this rank; by default those of ``torch.distributed`` if
        it is initialised, else 1 and 0.
    shuffle:
        ``False`` yields all samples in file order.
    shuffle_buffer:
        Pool size in samples; ``None`` for the size of the largest file.
    total_size:
        Number of samples in all files, if known; a wrong number raises an error.
    batch_size:
        Number of samples per batch; the last batch may be smaller.
    file_buffer:
        Maximum number of files in memory at a time, including those read ahead; 1 disables reading
        ahead.
    debug:
        Whether the logger ``compss_train.samplers`` logs each file that is read at level INFO
        instead of DEBUG.
    files_len:
        Number of samples in each file by name, so that the files need not be opened to count them.
        A ``FileDataset`` has its own.
    pools:
        With 1 (default), each run of ``shuffle_buffer`` samples is permuted. With 2, samples are
        drawn from one pool, which is refilled from a second, permuted one, so they move further, at
        twice the memory.
    seed:
        Seed of the order; must be the same on all ranks.
    drop_last:
        As in torch's ``DistributedSampler``: whether to drop the last ``samples % num_replicas``
        samples of each epoch, in its file order, instead of using some samples twice. The last
        batch may be smaller, but is equally large on all ranks.

    Attributes: ``num_samples`` and ``num_batches``, per epoch of this rank (``len(sampler)`` is the
    latter, as ``DataLoader`` expects); ``epoch``; ``reads``, statistics of reading ahead;
    ``skipped``, the invalid files that a data set with ``on_bad_file="skip"`` skips, which leaves
    batches with fewer samples.

    Raises ``ValueError`` for numbers out of range, a wrong ``total_size``, and fewer samples than
    ranks with ``drop_last``; ``BadFileError`` for invalid files: in the constructor if their
    headers show it, otherwise during iteration.

    Source: the samplers of microsoft/PartiallyShuffleDistributedSampler.
    """

    def __init__(
        self,
        dataset: Any,
        reader: Reader | Callable[..., Any] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shuffle_buffer: int | None = None,
        total_size: int | None = None,
        batch_size: int = 1,
        file_buffer: int = 10,
        debug: bool = False,
        files_len: Mapping[str, int] | None = None,
        seed: int = 0,
        drop_last: bool = False,
        *,
        pools: int = 1,
    ) -> None:
        is_distributed = dist.is_available() and dist.is_initialized()
        group = (dist.get_world_size(), dist.get_rank()) if is_distributed else (1, 0)
        self.num_replicas = check_count(
            "num_replicas", group[0] if num_replicas is None else num_replicas
        )
        self.rank = check_count("rank", group[1] if rank is None else rank, least=0)
        if self.rank >= self.num_replicas:
            raise ValueError(
                f"rank={self.rank}, num_replicas={self.num_replicas}: give a rank from 0 to "
                f"{self.num_replicas - 1}"
            )
        check_choice("shuffle", shuffle, (True, False))
        check_choice("drop_last", drop_last, (True, False))
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = check_seed(seed)
        check_count("file_buffer", file_buffer)
        self.dataset = dataset
        self.files = _as_file_dataset(dataset, reader=reader, files_len=files_len)
        self.files.check_dtypes(self.files.keys)
        self.total_size = self.files.number_samples
        if total_size is not None and total_size != self.total_size and not self.files.skipped:
            raise ValueError(
                f"total_size={total_size}, but the {len(self.files.files)} files hold "
                f"{self.total_size} samples; remove total_size, or check whether files are "
                "missing"
            )
        pool_size = (
            None if shuffle_buffer is None else check_count("shuffle_buffer", shuffle_buffer)
        )
        self.pools = PartialShuffle(pool_size, pools).of_blocks(self.files.sizes)
        self.num_samples = rows_of_rank(self.total_size, self.num_replicas, drop_last=drop_last)
        if not self.num_samples:
            raise ValueError(
                f"drop_last=True, num_replicas={self.num_replicas}: {self.total_size} samples "
                "are fewer than one per rank; use drop_last=False or fewer ranks"
            )
        self._loader = FileLoader(
            self.files.part(range(len(self.files.files))), file_buffer, debug=debug
        )
        self._store: SlotStore | None = None  # its memory is reused in the next epoch
        self.epoch = 0
        self._start = 0  # first batch of the next iteration
        self._steps = _Steps(0)

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch."""
        return -(-self.num_samples // self.batch_size)

    @property
    def reads(self) -> FileReads:
        """Statistics of reading ahead, over all iterations."""
        return self._loader.reads

    @property
    def skipped(self) -> dict[str, str]:
        """The skipped files, and the reason for each."""
        return {
            **getattr(self.dataset, "skipped", {}),
            **self.files.skipped,
            **self._loader.skipped,
        }

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a different epoch starts at its first batch."""
        epoch = check_count("epoch", epoch, least=0)
        if epoch != self.epoch:
            self._start_at(0)
        self.epoch = epoch

    def find_ckpt_position(self, step: int) -> None:
        """Start the next iteration after ``step`` batches of the epoch, with exactly the remaining
        batches.
        """
        self._start_at(self._checked_step(step))

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the epoch and how many of its batches were used, as plain numbers and strings.

        By default those that the loop received from this sampler, or from a ``DataLoader`` over it,
        whose processes fetch more ahead. ``step`` gives the number of batches of this epoch that
        were used, also those before ``load_state_dict``: where batches are fetched ahead in other
        ways (by Lightning, by Accelerate, in a thread). Warns where the number is needed and
        missing: a ``DataLoader`` with processes that returns batches in any order
        (``in_order=False``), or over a wrapper of this sampler. ``StatefulDataLoader`` of torchdata
        keeps this state in its own.
        """
        if step is not None:
            step = self._checked_step(step)
        elif sys._getframe(1).f_globals["__name__"].startswith("torchdata."):
            # It keeps the state of each request until the loop gets the batch.
            step = self._steps.requested
        else:
            step = self._steps.received
            if self._steps.is_uncertain:
                warn_user(
                    f"this state has {step} batches, as many as were requested: the loader's "
                    "processes fetch batches ahead, and do not tell which the loop has received; "
                    "give state_dict(step=...), the number of batches of this epoch that were "
                    "used"
                )
        return {"epoch": self.epoch, "step": step, "order": self._fingerprint}

    def _checked_step(self, step: int) -> int:
        if check_count("step", step, least=0) > self.num_batches:
            raise ValueError(f"step={step}: an epoch has {self.num_batches} batches")
        return step

    def _start_at(self, step: int) -> None:
        self._start = step
        self._steps = _Steps(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another sampler stopped; the next iteration yields exactly its remaining
        batches.

        Raises ``ValueError`` if the files, their sizes, the ranks or the options differ, and with
        them the order.
        """
        if state.get("order") != self._fingerprint:
            raise ValueError(
                "the state is of a sampler with another order: files, their sizes, seed, "
                "batch_size, shuffle, shuffle_buffer, pools, drop_last, rank and num_replicas "
                "must be the same as when it was saved"
            )
        epoch = check_count("epoch", state["epoch"], least=0)
        self.find_ckpt_position(state["step"])
        self.epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the memory of the pools: a copy allocates its own."""
        return {**self.__dict__, "_store": None}

    @cached_property
    def _fingerprint(self) -> str:
        order = (
            self.files.sizes,
            self.seed,
            self.batch_size,
            self.shuffle,
            *self.pools,
            self.drop_last,
        )
        names = [name.rpartition("/")[2] for name in self.files.files]
        return hashlib.sha256(
            json.dumps([names, *order, self.rank, self.num_replicas]).encode()
        ).hexdigest()[:16]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch."""
        return _Iteration(self._remaining)

    def _remaining(self, steps: "_Steps") -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch, and count them in ``steps``."""
        start = self._start
        self._start = 0
        self._steps = steps
        steps.begin(start)
        if hasattr(self.dataset, "reset"):
            self.dataset.reset()
        # used by one iteration at a time
        store = self._store or SlotStore()
        self._store = None
        for step, batch in enumerate(self._batches(start, store), start):
            steps.requested = step + 1
            if batch is not None:
                yield self._converted(batch)
            elif self.num_replicas > 1:
                raise ValueError(
                    f"rank {self.rank} could read no sample of batch {step}, unlike the other "
                    "ranks; use larger pools, which spread the missing samples, or remove the "
                    "files: " + ", ".join(self.skipped)
                )
        self._store = store

    def _batches(self, start: int, store: SlotStore) -> Iterator[Any]:
        """Iterate over the batches of an epoch; without shuffling, the pools only cut the rows into
        batches.
        """
        ranks = (self.num_replicas, self.rank)
        options = {"shuffle": self.shuffle, "drop_last": self.drop_last}
        row_ranges = rank_row_ranges(self.files.sizes, *ranks, self.seed, self.epoch, **options)
        random = None
        pools = Pools(self.batch_size)
        if self.shuffle:
            random = partial_shuffle_generator(self.seed, self.epoch, *row_ranges[0].origin)
            pools = self.pools

        @contextmanager
        def open_chunks(numbers: Sequence[int]) -> Iterator[Iterator[Any]]:
            selected = [row_ranges[number] for number in numbers]
            with self._loader.open(selected) as arrays:
                yield map(self._chunk, selected, arrays)

        first = min(start * self.batch_size, self.num_samples)
        starts = range(first, self.num_samples, self.batch_size)
        return shuffled_batches(
            [len(row_range) for row_range in row_ranges],
            open_chunks,
            pools=pools,
            random=random,
            batch_sizes=[min(self.batch_size, self.num_samples - start) for start in starts],
            start=first,
            store=store,
        )

    def _chunk(self, row_range: RowRange, rows: FileRows | None) -> Chunk | None:
        return None if rows is None else (self._prepare(row_range, rows.arrays), rows.missing)

    def _prepare(self, row_range: RowRange, arrays: Arrays) -> Any:
        """Return the arrays, or a tuple that includes them, to be shuffled for the rows of a
        range.
        """
        return arrays

    def _converted(self, batch: Any) -> Any:
        """Return what is yielded for a batch of prepared rows."""
        return batch


class _Steps:
    """Where an iteration is in its epoch, in batches: those that were requested, and those that the
    loop received.

    A ``DataLoader`` with processes requests a fixed number of batches first, and then another one
    with each batch that it returns, also after the last one.
    """

    def __init__(self, start: int, ahead: int = 0, *, is_uncertain: bool = False) -> None:
        self.is_uncertain = is_uncertain
        """Whether batches were fetched ahead, and nobody knows which of them were received."""
        self._recent = deque([start] * (ahead + 1), ahead + 1)
        """``requested`` after the last requests, those that are fetched ahead and the one
        before.
        """
        self.requested = start

    @classmethod
    def of_loader(cls, frame: FrameType) -> "_Steps":
        """Return the steps of an iteration that a frame, perhaps a ``DataLoader``'s, begins."""
        is_direct = True
        caller = frame
        while (loader := fetched_ahead(caller.f_locals.get("self"))) is None:
            if caller.f_back is None:
                return cls(0)
            is_direct = False
            caller = caller.f_back
        ahead, in_order = loader
        is_known = is_direct and in_order
        return cls(0, ahead if is_known else 0, is_uncertain=ahead > 0 and not is_known)

    def begin(self, start: int) -> None:
        """Begin at this batch of the epoch."""
        self.requested = start
        self._recent.extend([start] * len(self._recent))

    def note_request(self) -> None:
        """Note that a request has been answered, if only with the end of the epoch."""
        self._recent.append(self.requested)

    @property
    def received(self) -> int:
        """Number of the epoch's batches that the loop has received, and those before its start."""
        return self._recent[0]


class _Iteration(Iterator[Any]):
    """An iteration, which begins with the first request: a ``DataLoader`` makes iterators that it
    does not use.
    """

    def __init__(self, begin: Callable[[_Steps], Iterator[Any]]) -> None:
        self._begin = begin
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._batches is None:
            self._steps = _Steps.of_loader(sys._getframe(1))
            self._batches = self._begin(self._steps)
        try:
            return next(self._batches)
        finally:
            self._steps.note_request()


def _as_file_dataset(dataset: Any, **options: Any) -> FileDataset:
    """Return a data set with the options that are not ``None``; a ``FileDataset`` already has its
    own.
    """
    given = {name: option for name, option in options.items() if option is not None}
    if isinstance(dataset, FileDataset):
        reader = (
            dataset.reader.function if isinstance(dataset.reader, CustomReader) else dataset.reader
        )
        own = {"reader": reader, "files_len": dataset.files_len}
        if others := [name for name, option in given.items() if option != own.get(name)]:
            raise ValueError(
                f"{others[0]}= is an option of the files: give FileDataset(files, {others[0]}=...)"
            )
        return dataset
    if not hasattr(dataset, "files"):
        raise TypeError(
            f"a {type(dataset).__name__} has no list of files in .files; give a FileDataset(files)"
        )
    return FileDataset(list(dataset.files), **given)


class DistributedSamplerViaLocallyShuffle(PartialShuffleSampler):
    """A ``PartialShuffleSampler`` with one pool that yields batches like the original class of this
    name.

    A batch is ``[list of dicts of arrays, None, list of files]``: its samples are grouped by file,
    and files are in the order of their first samples. ``len`` is the number of samples of the rank;
    ``seed`` and ``drop_last`` are those of torch's ``DistributedSampler``. Files whose arrays,
    shapes or dtypes differ from those of the first file raise an error, as do wrong ``files_len``
    and ``total_size``.
    """

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return self.num_samples

    def _prepare(self, row_range: RowRange, arrays: Arrays) -> Any:
        return arrays, np.full(len(row_range), row_range.file)

    def _converted(self, batch: Any) -> list[Any]:
        arrays, files = batch
        numbers = list(dict.fromkeys(files.tolist()))
        rows = [np.flatnonzero(files == number) for number in numbers]
        parts = [{key: array[chosen] for key, array in arrays.items()} for chosen in rows]
        return [parts, None, [self.files.files[number] for number in numbers]]


class DistributedSamplerViaLocallyShuffleV2(DistributedSamplerViaLocallyShuffle):
    """A ``DistributedSamplerViaLocallyShuffle`` with two pools; it takes the same arguments except
    ``pools``.
    """

    @wraps(DistributedSamplerViaLocallyShuffle.__init__)  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, pools=2)
