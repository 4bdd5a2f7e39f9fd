"""``PartialShuffleSampler``: batches of samples that lie in many files, read in turn and mixed in pools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler

from compss_train._utils.validation import check_choice, check_count, check_seed
from compss_train.data.files import FileDataset
from compss_train.data.order import partial_shuffle_generator
from compss_train.data.readers import Arrays, CustomReader, Reader
from compss_train.data.row_ranges import RowRange, even_share
from compss_train.samplers.loader import FileLoader, FileReads
from compss_train.samplers.mixing import mixed
from compss_train.samplers.pools import Pools
from compss_train.samplers.slots import SlotStore


class PartialShuffleSampler(Sampler[Any]):
    """Iterates over a rank's batches of an epoch: dicts of arrays with a row a sample.

    Every epoch the files are put in a new order and cut into a share of ``ceil(samples / num_replicas)`` samples a
    rank. Each rank reads its share file by file and ahead, and mixes the samples in one or two pools. The order is
    a function of seed, epoch and position. To make the ranks even, at most ``num_replicas - 1`` samples come twice.

    It gives the samples themselves. In a ``DataLoader`` it is used as
    ``DataLoader(dataset, sampler=sampler, batch_size=None)``, which makes the arrays tensors.

    Parameters
    ----------
    dataset:
        A ``FileDataset``, or anything that lists files in ``.files``, whose ``reset()``, if there is one, is called
        at the start of an epoch.
    reader:
        A function ``reader(filename, get_data=False)``; ``None`` takes the dataset's, or the one for such files.
    num_replicas, rank:
        How many ranks there are, and which this is; by default those of ``torch.distributed`` where that is
        initialised, else one.
    shuffle:
        ``False`` gives all samples in the order of the files.
    shuffle_buffer:
        Samples in a pool; ``None`` for as many as the largest file has.
    total_size:
        Samples in all files, if known: another number is an error.
    batch_size:
        Samples in a batch; the last one may have fewer.
    file_buffer:
        The most files in memory at a time, those read ahead included; 1 reads none ahead.
    debug:
        Whether to log every file that is read at level INFO rather than DEBUG, in ``compss_train.samplers``.
    files_len:
        Samples of each file by name, which saves opening them to count.
    pools:
        1: each run of ``shuffle_buffer`` samples is permuted. 2: samples are drawn from one pool, which a second,
        permuted one refills, so that they travel further, for twice the memory.
    seed:
        Of the order, the same on all ranks.

    Attributes: ``num_samples`` of this rank, ``num_batches``, ``epoch``, ``reads`` (files read, and how many
    ahead), ``skipped`` (bad files that a dataset with ``on_bad_file="skip"`` leaves out; batches then have fewer
    samples).

    Raises ``ValueError`` for numbers out of range and a ``total_size`` that is wrong, ``BadFileError`` for files,
    here where their headers tell and in the iteration otherwise.

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
        *,
        pools: int = 1,
        seed: int = 0,
    ) -> None:
        self.num_replicas, self.rank = _place(num_replicas, rank)
        check_choice("shuffle", shuffle, (True, False))
        self.shuffle = shuffle
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = check_seed(seed)
        check_count("file_buffer", file_buffer)
        self.dataset = dataset
        self._files = _as_files(dataset, reader, files_len)
        self._files.learn_layout()  # what is like the others must not depend on which file a rank reads first
        self._files.check_dtypes(self._files.keys)
        self.total_size = _checked_total(self._files, total_size)
        self.pools = Pools(max(self._files.sizes) if shuffle_buffer is None else shuffle_buffer, pools)
        self.num_samples = -(-self.total_size // self.num_replicas)
        self._loader = FileLoader(self._files.part(range(len(self._files.files))), file_buffer, debug=debug)
        self._store: SlotStore | None = None  # its memory serves again in the next epoch
        self.epoch = 0
        self._start = 0  # batch that the next iteration begins with
        self._given = 0  # batches of the epoch that have been given

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return -(-self.num_samples // self.batch_size)

    @property
    def reads(self) -> FileReads:
        """What was read so far, in all iterations."""
        return self._loader.reads

    @property
    def skipped(self) -> dict[str, str]:
        """Bad files that were left out, and what is wrong with them."""
        return {**getattr(self.dataset, "skipped", {}), **self._files.skipped, **self._loader.skipped}

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; another one than before begins with its first batch."""
        epoch = check_count("epoch", epoch, least=0)
        if epoch != self.epoch:
            self._start = self._given = 0
        self.epoch = epoch

    def find_ckpt_position(self, step: int) -> None:
        """Let the next iteration begin after ``step`` batches of the epoch, with exactly those that remain."""
        step = check_count("step", step, least=0)
        if step > self.num_batches:
            raise ValueError(f"step={step}: an epoch has {self.num_batches} batches")
        self._start = self._given = step

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and how many of its batches have been given; plain numbers and strings."""
        return {"epoch": self.epoch, "step": self._given, "order": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler was; the next iteration gives exactly what that one had still to give.

        Raises ``ValueError`` where this one has other files, sizes, ranks or options, so another order.
        """
        if state.get("order") != self._fingerprint:
            raise ValueError(
                "the state is of a sampler with another order: files, their sizes, seed, batch_size, shuffle, "
                "shuffle_buffer, pools, rank and num_replicas must be those of when it was saved"
            )
        epoch = check_count("epoch", state["epoch"], least=0)
        self.find_ckpt_position(state["step"])
        self.epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pools' memory, of which a copy takes its own."""
        return {**self.__dict__, "_store": None}

    @cached_property
    def _fingerprint(self) -> str:
        parts = (self._files.sizes, self.seed, self.batch_size, self.shuffle, self.pools.size, self.pools.number)
        names = [name.rpartition("/")[2] for name in self._files.files]
        text = json.dumps([names, *parts, self.rank, self.num_replicas])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the epoch that remain."""
        start, self._start = self._start, 0
        self._given = start
        getattr(self.dataset, "reset", _nothing)()
        place = (self.rank, self.seed, self.epoch)
        row_ranges = even_share(self._files.sizes, self.num_replicas, *place, shuffle=self.shuffle)
        store, self._store = self._store or SlotStore(), None  # one iteration's at a time
        for batch in self._mixed(row_ranges, start, store):
            self._given += 1
            if batch is not None:
                yield batch
            elif self.num_replicas > 1:
                raise ValueError(
                    f"rank {self.rank} could read nothing of batch {self._given - 1}, which the other ranks have; "
                    "take larger pools, so that the rows that are missing spread, or remove the files: "
                    + ", ".join(self.skipped)
                )
        self._store = store

    def _mixed(self, row_ranges: list[RowRange], start: int, store: SlotStore) -> Iterator[Any]:
        """Iterate over batches of these stretches; without a shuffle pools are there to cut batches."""
        random, pools = None, Pools(self.batch_size)
        if self.shuffle:
            random, pools = partial_shuffle_generator(self.seed, self.epoch, *row_ranges[0].place), self.pools

        @contextmanager
        def reading(numbers: Sequence[int]) -> Iterator[Iterator[Any]]:
            wanted = [row_ranges[number] for number in numbers]
            with self._loader.reading(wanted) as arrays:
                yield map(self._rows, wanted, arrays)

        given = min(start * self.batch_size, self.num_samples)
        sizes = [
            min(self.batch_size, self.num_samples - first)
            for first in range(given, self.num_samples, self.batch_size)
        ]
        return mixed([len(row_range) for row_range in row_ranges], reading, pools, random, sizes, given, store)

    def _rows(self, row_range: RowRange, arrays: Arrays | None) -> Any:
        """Return what is mixed, for the rows of a stretch."""
        return arrays


def _nothing() -> None:
    pass


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return how many ranks there are and which this is, asking torch.distributed for what is not given."""
    in_group = dist.is_available() and dist.is_initialized()
    if num_replicas is None:
        num_replicas = dist.get_world_size() if in_group else 1
    if rank is None:
        rank = dist.get_rank() if in_group else 0
    check_count("num_replicas", num_replicas)
    if check_count("rank", rank, least=0) >= num_replicas:
        raise ValueError(f"rank={rank}, num_replicas={num_replicas}: give a rank from 0 to {num_replicas - 1}")
    return int(num_replicas), int(rank)


def _as_files(dataset: Any, reader: Any, files_len: Mapping[str, int] | None) -> FileDataset:
    if isinstance(dataset, FileDataset):
        own = dataset.reader.function if isinstance(dataset.reader, CustomReader) else dataset.reader
        if files_len is None and (reader is None or reader == own):
            return dataset
        return dataset.read_otherwise(reader, files_len)
    if not hasattr(dataset, "files"):
        raise TypeError(f"a {type(dataset).__name__} lists no files in .files; give FileDataset(files)")
    return FileDataset(list(dataset.files), reader, files_len)


def _checked_total(files: FileDataset, total_size: int | None) -> int:
    if total_size is not None and total_size != files.number_samples and not files.skipped:
        raise ValueError(
            f"total_size={total_size}, but the {len(files.files)} files hold {files.number_samples} samples; "
            "leave total_size out, or look whether files are missing"
        )
    return files.number_samples
