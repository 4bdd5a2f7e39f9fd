"""Drop-in replacements for the samplers of microsoft/PartiallyShuffleDistributedSampler, on current PyTorch."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from compss_train.data.readers import Arrays
from compss_train.data.row_ranges import RowRange
from compss_train.samplers.partial import PartialShuffleSampler

ByFile = list[Any]
"""A batch: a list of dicts of arrays, one per file; ``None``; the list of file names."""


class DistributedSamplerViaLocallyShuffle(PartialShuffleSampler):
    """A ``PartialShuffleSampler`` with one pool, and the constructor and batches of the original of this name.

    A batch is ``[list of dicts of arrays, None, list of files]``: samples are grouped by file, with files in the
    order of their first samples. ``len`` is the number of samples of the rank, and ``seed`` and ``drop_last`` are
    as in torch's ``DistributedSampler``. Files whose arrays, shapes or dtypes differ from those of the first one
    are an error, as are wrong ``files_len`` and ``total_size``.
    """

    _pools: ClassVar[int] = 1

    def __init__(
        self,
        dataset: Any,
        reader: Callable[..., Any] | None = None,
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
        threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            reader,
            num_replicas,
            rank,
            shuffle=shuffle,
            shuffle_buffer=shuffle_buffer,
            total_size=total_size,
            batch_size=batch_size,
            file_buffer=file_buffer,
            debug=debug,
            files_len=files_len,
            pools=self._pools,
            seed=seed,
            drop_last=drop_last,
            threads=threads,
            cache=cache,
            cache_bytes=cache_bytes,
        )

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[ByFile]:
        """Iterate over the remaining batches of the epoch."""
        for arrays, files in super().__iter__():
            yield self._group_by_file(arrays, files)

    def _prepare(self, row_range: RowRange, arrays: Arrays | None) -> Any:
        return None if arrays is None else (arrays, np.full(len(row_range), row_range.file))

    def _group_by_file(self, arrays: Arrays, files: np.ndarray[Any, np.dtype[np.int64]]) -> ByFile:
        numbers = list(dict.fromkeys(files.tolist()))
        rows = [np.flatnonzero(files == number) for number in numbers]
        parts = [{key: array[chosen] for key, array in arrays.items()} for chosen in rows]
        return [parts, None, [self._files.files[number] for number in numbers]]


class DistributedSamplerViaLocallyShuffleV2(DistributedSamplerViaLocallyShuffle):
    """The sampler with two pools."""

    _pools = 2
