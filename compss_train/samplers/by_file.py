"""The samplers of microsoft/PartiallyShuffleDistributedSampler by their names, on current PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from compss_train.data.readers import Arrays
from compss_train.data.row_ranges import RowRange
from compss_train.samplers.partial import PartialShuffleSampler

ByFile = list[Any]
"""Dicts of arrays, one a file; ``None``; the names of the files."""


class DistributedSamplerViaLocallyShuffle(PartialShuffleSampler):
    """A ``PartialShuffleSampler`` with one pool, with the constructor and the batches of the original of this name.

    A batch is ``[list of dicts of arrays, None, list of files]``: the samples of each file together, files in the
    order of their first samples. ``len`` is the rank's number of samples. Files with other arrays, shapes or dtypes
    than the first one are an error, as are wrong ``files_len`` and ``total_size``.
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
    ) -> None:
        options = (shuffle, shuffle_buffer, total_size, batch_size, file_buffer, debug, files_len)
        super().__init__(dataset, reader, num_replicas, rank, *options, pools=self._pools)

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return self.num_samples

    def __iter__(self) -> Iterator[ByFile]:
        """Iterate over the batches of the epoch that remain."""
        for arrays, files in super().__iter__():
            yield self._apart(arrays, files)

    def _rows(self, row_range: RowRange, arrays: Arrays | None) -> Any:
        return None if arrays is None else (arrays, np.full(len(row_range), row_range.file))

    def _apart(self, arrays: Arrays, files: np.ndarray[Any, np.dtype[np.int64]]) -> ByFile:
        numbers = list(dict.fromkeys(files.tolist()))
        rows = [np.flatnonzero(files == number) for number in numbers]
        parts = [{key: array[chosen] for key, array in arrays.items()} for chosen in rows]
        return [parts, None, [self._files.files[number] for number in numbers]]


class DistributedSamplerViaLocallyShuffleV2(DistributedSamplerViaLocallyShuffle):
    """The same with two pools."""

    _pools = 2
