"""``compss-train shard`` and ``send``: write samples as files of another size, and stream them to a fit."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train._utils.validation import check_count
from compss_train.cli.arguments import TOKEN_VARIABLE
from compss_train.data.blocked import BlockedTensor
from compss_train.data.files import FileDataset
from compss_train.data.layout import is_supported, quote_names
from compss_train.data.locations import file_names
from compss_train.data.readers.table import TableReader
from compss_train.data.writing import write_files, write_parts
from compss_train.samplers import PartialShuffleSampler


def shard(options: argparse.Namespace) -> int:
    """Write the files, and print their number and the classes of strings."""
    files, classes = write_shards(options)
    print(f"{len(files)} files in {options.output.absolute()}")
    for name, values in classes.items():
        print(f"classes of {name}: {', '.join(f'{number} is {value}' for number, value in enumerate(values))}")
    return 0


def write_shards(options: argparse.Namespace) -> tuple[list[str], Mapping[str, Sequence[Any]]]:
    """Write the samples of the inputs as files of ``rows`` samples each; return names, and classes of strings.

    The inputs are files of one kind, or ``NAME=FILE.npy`` for each array. Files are read in turn, a few at a time;
    with a ``shuffle_buffer`` their samples are shuffled in two pools of that size.

    Raises ``ValueError`` for inputs of both forms, and columns without numbers that ``keys`` do not name,
    ``BadFileError`` for files that cannot be read.
    """
    inputs, rows, format = options.inputs, check_count("rows", options.rows), options.format
    named = [text.partition("=")[::2] for text in inputs if "=" in text and not Path(text).exists()]
    if not named:
        files = [name for text in inputs for name in file_names(text)]
        dataset = _open(files, options.keys)
        return write_parts(options.output, _read_parts(dataset, options), format=format), dataset.classes
    if len(named) != len(inputs) or options.shuffle_buffer is not None or options.keys is not None:
        raise ValueError(
            f"{named[0][0]}=FILE names an array: give all inputs this way, and neither --shuffle-buffer nor --keys"
        )
    names = [name for name, _ in named]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{' '.join(inputs)}: give each array a different name, NAME=FILE.npy")
    arrays = {name: BlockedTensor.from_files([path]) for name, path in named}
    return write_files(options.output, arrays, rows=rows, format=format), {}


def _open(files: list[str], keys: Sequence[str] | None) -> FileDataset:
    dataset = FileDataset(files, keys=keys)
    others = [name for name, field in (dataset.layout or {}).items() if not is_supported(field)]
    if others:
        table = isinstance(dataset.reader, TableReader)
        hint = "the columns to write with --keys NAME,...; those of strings become the numbers of their classes"
        raise ValueError(
            f"{files[0]} holds no numbers in {quote_names(others)}: name "
            + (hint if table else "other arrays with --keys NAME,..., or convert these")
        )
    return dataset


def _read_parts(dataset: FileDataset, options: argparse.Namespace) -> PartialShuffleSampler:
    return PartialShuffleSampler(
        dataset,
        shuffle=options.shuffle_buffer is not None,
        shuffle_buffer=options.shuffle_buffer,
        batch_size=options.rows,
        pools=2,
        seed=options.seed,
        num_replicas=1,
        rank=0,
    )


def send(options: argparse.Namespace) -> int:
    """Send samples from standard input until it ends, or training does."""
    from compss_train.online.sender import send_records  # which needs pyzmq

    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ValueError(f"the token is missing: give --token or set {TOKEN_VARIABLE}")
    print(send_records(options, token, sys.stdin.buffer), file=sys.stderr)
    return 0
