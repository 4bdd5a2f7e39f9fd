"""``PartialShuffleSampler``: batches of samples from many files, read in turn and shuffled."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler

from compss_train._utils.validation import check_choice, check_count, check_seed, warn_user
from compss_train.data.files import FileDataset
from compss_train.data.order import (
    RowRange,
    partial_shuffle_generator,
    rank_row_ranges,
    rows_of_rank,
)
from compss_train.data.readers import Arrays, CustomReader, Reader
from compss_train.samplers.iteration import Iteration, Steps
from compss_train.samplers.loader import FileLoader, FileReads, FileRows
from compss_train.samplers.mixing import Chunk, SlotStore, shuffled_batches
from compss_train.samplers.pools import PartialShuffle, Pools


class PartialShuffleSampler(Sampler[Any]):
    """Yields the batches of one rank in an epoch: dicts of arrays with one row per sample.

    In every epoch the files are reordered and split into ``ceil(samples / num_replicas)`` samples
    per rank. A rank reads its share file by file, a few files ahead, and shuffles the samples in
    one or two pools. The order depends only on the seed, the epoch and the position. To give all
    ranks the same number of samples, fewer than ``num_replicas`` samples are used twice, or dropped
    with ``drop_last``.

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
        self.num_replicas, self.rank = _checked_ranks(num_replicas, rank)
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
        if shuffle_buffer is not None:
            check_count("shuffle_buffer", shuffle_buffer)
        self.pools = PartialShuffle(shuffle_buffer, pools).of_blocks(self.files.sizes)
        self.num_samples = rows_of_rank(self.total_size, self.num_replicas, drop_last=drop_last)
        if not self.num_samples:
            raise ValueError(
                f"drop_last=True, num_replicas={self.num_replicas}: {self.total_size} samples "
                "are fewer than one per rank; use drop_last=False or fewer ranks"
            )
        self._loader = FileLoader(
            self.files.part(range(len(self.files.files))), file_buffer, debug=debug
        )
        self._store: SlotStore | None = None
        """The pools of the last iteration, whose memory the next one reuses."""
        self.epoch = 0
        self._start = 0
        """The first batch of the next iteration."""
        self._steps = Steps(0)

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
        """Start the next iteration after ``step`` batches of the epoch: it yields all others."""
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
        self._steps = Steps(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another sampler stopped: the next iteration yields its remaining batches.

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
        """What the order of the samples depends on, as a hash."""
        names = [name.rpartition("/")[2] for name in self.files.files]
        order = [
            names,
            self.files.sizes,
            self.seed,
            self.batch_size,
            self.shuffle,
            *self.pools,
            self.drop_last,
            self.rank,
            self.num_replicas,
        ]
        return hashlib.sha256(json.dumps(order).encode()).hexdigest()[:16]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch."""
        return Iteration(self._remaining)

    def _remaining(self, steps: Steps) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch, and count them in ``steps``."""
        start = self._start
        self._start = 0
        self._steps = steps
        steps.begin(start)
        if hasattr(self.dataset, "reset"):
            self.dataset.reset()
        store = self._store or SlotStore()
        self._store = None  # so that no other iteration uses it
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
        """Iterate over the batches of an epoch."""
        row_ranges = rank_row_ranges(
            self.files.sizes,
            self.num_replicas,
            self.rank,
            self.seed,
            self.epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )
        if self.shuffle:
            random = partial_shuffle_generator(self.seed, self.epoch, *row_ranges[0].origin)
            pools = self.pools
        else:
            random = None
            pools = Pools(self.batch_size)  # which only cuts the rows into batches

        @contextmanager
        def open_chunks(numbers: Sequence[int]) -> Iterator[Iterator[Any]]:
            selected = [row_ranges[number] for number in numbers]
            with self._loader.open(selected) as rows_of_files:
                yield map(self._chunk, selected, rows_of_files)

        first = min(start * self.batch_size, self.num_samples)
        first_samples = range(first, self.num_samples, self.batch_size)
        return shuffled_batches(
            [len(row_range) for row_range in row_ranges],
            open_chunks,
            pools=pools,
            random=random,
            batch_sizes=[
                min(self.batch_size, self.num_samples - sample) for sample in first_samples
            ],
            start=first,
            store=store,
        )

    def _chunk(self, row_range: RowRange, rows: FileRows | None) -> Chunk | None:
        return None if rows is None else (self._prepare(row_range, rows.arrays), rows.missing)

    def _prepare(self, row_range: RowRange, arrays: Arrays) -> Any:
        """Return what is shuffled of the rows of a range: the arrays, or a tuple with them."""
        return arrays

    def _converted(self, batch: Any) -> Any:
        """Return what is yielded for a batch of prepared rows."""
        return batch


def _checked_ranks(num_ranks: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of ranks, and of this rank; by default those of ``torch.distributed``."""
    is_distributed = dist.is_available() and dist.is_initialized()
    if num_ranks is None:
        num_ranks = dist.get_world_size() if is_distributed else 1
    if rank is None:
        rank = dist.get_rank() if is_distributed else 0
    num_ranks = check_count("num_replicas", num_ranks)
    rank = check_count("rank", rank, least=0)
    if rank >= num_ranks:
        raise ValueError(
            f"rank={rank}, num_replicas={num_ranks}: give a rank from 0 to {num_ranks - 1}"
        )
    return num_ranks, rank


def _as_file_dataset(dataset: Any, **options: Any) -> FileDataset:
    """Return a ``FileDataset`` with the options that are not ``None``.

    Raises ``ValueError`` if the data set is one that has other options.
    """
    options = {name: option for name, option in options.items() if option is not None}
    if isinstance(dataset, FileDataset):
        reader: Reader | Callable[..., Any] = dataset.reader
        if isinstance(reader, CustomReader):
            reader = reader.function
        present = {"reader": reader, "files_len": dataset.files_len}
        for name, option in options.items():
            if option != present.get(name):
                raise ValueError(
                    f"{name}= is an option of the files: give FileDataset(files, {name}=...)"
                )
        return dataset
    if not hasattr(dataset, "files"):
        raise TypeError(
            f"a {type(dataset).__name__} has no list of files in .files; give a FileDataset(files)"
        )
    return FileDataset(list(dataset.files), **options)
