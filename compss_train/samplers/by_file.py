"""Samplers whose batches are grouped by file, as in microsoft/PartiallyShuffleDistributedSampler.

They are drop-in replacements for its classes that run on current PyTorch.
"""

from functools import wraps
from typing import Any

import numpy as np

from compss_train.data.order import RowRange
from compss_train.data.readers import Arrays
from compss_train.samplers.partial import PartialShuffleSampler


class DistributedSamplerViaLocallyShuffle(PartialShuffleSampler):
    """A ``PartialShuffleSampler`` with one pool, and the batches of the original of this name.

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
        rows_by_file = [np.flatnonzero(files == number) for number in numbers]
        parts = [{key: array[rows] for key, array in arrays.items()} for rows in rows_by_file]
        return [parts, None, [self.files.files[number] for number in numbers]]


class DistributedSamplerViaLocallyShuffleV2(DistributedSamplerViaLocallyShuffle):
    """A ``DistributedSamplerViaLocallyShuffle`` with two pools.

    It takes the same arguments except ``pools``.
    """

    @wraps(DistributedSamplerViaLocallyShuffle.__init__)  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, pools=2)
