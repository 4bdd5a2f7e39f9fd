"""The command ``compss-train shard``: arrays or files in, files of another size or format out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compss_train._utils.validation import check_count
from compss_train.data.blocked import BlockedTensor
from compss_train.data.files import FileDataset, file_names
from compss_train.data.writing import write_files, write_parts
from compss_train.samplers import PartialShuffleSampler


def shard(
    inputs: Sequence[str],
    output: Path,
    rows: int,
    format: str = "npz",
    shuffle_buffer: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Write what the inputs hold as files of ``rows`` samples, and return their names.

    ``inputs`` are files of one kind, or ``NAME=FILE.npy`` for each array. Files are read in turn, so that no more
    than a few are in memory; with a ``shuffle_buffer`` their samples are mixed in two pools of that size.

    Raises ``ValueError`` for inputs of both forms, ``BadFileError`` for files that cannot be read.
    """
    check_count("rows", rows)
    named = [text.partition("=")[::2] for text in inputs if "=" in text and not Path(text).exists()]
    if not named:
        files = [name for text in inputs for name in file_names(text)]
        return write_parts(output, _parts(FileDataset(files), rows, shuffle_buffer, seed), format=format)
    if len(named) != len(inputs) or shuffle_buffer is not None:
        raise ValueError(f"{named[0][0]}=FILE names an array: give all inputs so, and no shuffle buffer")
    names = [name for name, _ in named]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{' '.join(inputs)}: give each array a name of its own, NAME=FILE.npy")
    arrays = {name: BlockedTensor.from_files([path]) for name, path in named}
    return write_files(output, arrays, rows=rows, format=format)


def _parts(dataset: FileDataset, rows: int, shuffle_buffer: int | None, seed: int) -> PartialShuffleSampler:
    return PartialShuffleSampler(
        dataset,
        shuffle=shuffle_buffer is not None,
        shuffle_buffer=shuffle_buffer,
        batch_size=rows,
        pools=2,
        seed=seed,
        num_replicas=1,
        rank=0,
    )
