"""``compss-train shard`` and ``send``: write samples as files of another size, and stream them to a fit."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train.cli.commands.base import Command, comma_separated

if TYPE_CHECKING:
    from compss_train.data.files import FileDataset
    from compss_train.samplers import PartialShuffleSampler

FORMATS = ("npz", "npz-compressed", "npy", "pt", "h5")
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
TOKEN_VARIABLE = "COMPSS_TRAIN_TOKEN"
"""Environment variable for the token, as other users can read command lines."""


def _add_shard_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = ".npz, .npy, .pt, .h5, .parquet, .arrow, .csv"
    inputs = f"files of one kind ({kinds}) or quoted patterns, or NAME=FILE.npy for each array"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder of the new files")
    parser.add_argument("--rows", type=int, required=True, help="samples per file")
    keys = "arrays or columns to write (default: all); strings become the numbers of their classes"
    parser.add_argument("--keys", type=comma_separated, metavar="NAME,...", help=keys)
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="format of the files (default: npz)")
    buffer = "shuffle the samples, in two buffers of this size (default: keep their order)"
    parser.add_argument("--shuffle-buffer", type=int, metavar="SAMPLES", help=buffer)
    parser.add_argument("--seed", type=int, default=0, help="seed of --shuffle-buffer (default: 0)")


def _run_shard(options: argparse.Namespace) -> int:
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
    from compss_train._utils.validation import check_count
    from compss_train.data.blocked import BlockedTensor
    from compss_train.data.locations import file_names
    from compss_train.data.writing import write_files, write_parts

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


def _open(files: list[str], keys: list[str] | None) -> FileDataset:
    from compss_train.data.files import FileDataset
    from compss_train.data.layout import is_supported, quote_names
    from compss_train.data.readers.table import TableReader

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
    from compss_train.samplers import PartialShuffleSampler

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


def _add_send_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="address= of fit_online, tcp://HOST:PORT")
    parser.add_argument("--x", required=True, metavar="SHAPE", help="shape of a sample's x, such as 6 or 3x64x64")
    parser.add_argument("--y", metavar="SHAPE", help="shape of its y (default: no y)")
    dtype = "dtype of x and y, in this machine's byte order (default: float32)"
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=dtype)
    parser.add_argument("--steps", action="store_true", help="each record starts with its time step, an int64")
    name = "name of this stream: samples that arrived under it before are not sent again"
    parser.add_argument("--name", help=name)
    parser.add_argument("--token", help=f"token= of fit_online (default: environment variable {TOKEN_VARIABLE})")
    timeout = "seconds to wait for the fit to start (default: 60)"
    parser.add_argument("--timeout", type=float, default=60.0, help=timeout)


def _run_send(options: argparse.Namespace) -> int:
    """Send samples from standard input until it ends, or training does."""
    from compss_train.online.sender import send_records

    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ValueError(f"the token is missing: give --token or set {TOKEN_VARIABLE}")
    print(send_records(options, token, sys.stdin.buffer), file=sys.stderr)
    return 0


SHARD = Command(
    name="shard",
    help="write arrays, or files of one size, as files of another size or format, from which workers train",
    add_arguments=_add_shard_arguments,
    run=_run_shard,
    examples="""\
  compss-train shard x=images.npy y=labels.npy --rows 5000 --output train
  compss-train shard "train/*.npz" --rows 20000 --format h5 --shuffle-buffer 50000 --output mixed
  compss-train shard "plants/*.csv" --keys height,width,kind --rows 5000 --output plants""",
)
SEND = Command(
    name="send",
    help="send samples that a solver writes to standard output to a fit_online, through a pipe",
    add_arguments=_add_send_arguments,
    run=_run_send,
)
