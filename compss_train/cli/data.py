"""``compss-train shard``: write samples as files of another size."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from compss_train._utils.validation import check_count
from compss_train.data import BlockedTensor, FileDataset, layout, locations, writing
from compss_train.reports.formatting import counted
from compss_train.samplers import PartialShuffleSampler


def shard(options: argparse.Namespace) -> int:
    """Write the samples of the inputs as files of ``rows`` samples each.

    The inputs are files of one kind, or ``NAME=FILE.npy`` for each array. Files are read in turn, a
    few at a time; with a ``shuffle_buffer`` their samples are shuffled in two pools of that size.
    The number of files is printed, and the classes of strings.

    Raises ``ValueError`` for inputs of both forms, and columns without numbers that ``keys`` do not
    name, ``BadFileError`` for files that cannot be read.
    """
    inputs = options.inputs
    rows = check_count("rows", options.rows)
    named = [text for text in inputs if "=" in text and not Path(text).exists()]
    names = [text.partition("=")[0] for text in named]
    has_options = options.shuffle_buffer is not None or options.keys is not None
    if named and (len(named) != len(inputs) or has_options):
        raise ValueError(
            f"{names[0]}=FILE names an array: give all inputs this way, and neither "
            "--shuffle-buffer nor --keys"
        )
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{' '.join(inputs)}: give each array a different name, NAME=FILE.npy")
    if named:
        paths = [text.partition("=")[2] for text in named]
        arrays = {
            name: BlockedTensor.from_files([path]) for name, path in zip(names, paths, strict=True)
        }
        files = writing.write_files(options.output, arrays, rows=rows, format=options.format)
        classes = {}
    else:
        dataset = _open(
            [name for text in inputs for name in locations.file_names(text)], options.keys
        )
        parts = PartialShuffleSampler(
            dataset,
            batch_size=rows,
            shuffle=options.shuffle_buffer is not None,
            shuffle_buffer=options.shuffle_buffer,
            pools=2,
            seed=options.seed,
            num_replicas=1,
            rank=0,
        )
        files = writing.write_parts(options.output, parts, format=options.format)
        classes = dataset.classes
    print(f"{counted(len(files), 'file')} in {options.output.absolute()}")
    for name, values in classes.items():
        codes = ", ".join(f"{number} is {value}" for number, value in enumerate(values))
        print(f"classes of {name}: {codes}")
    return 0


def _open(files: list[str], keys: Sequence[str] | None) -> FileDataset:
    dataset = FileDataset(files, keys=keys)
    fields = dataset.layout or {}
    unsupported = [name for name, field in fields.items() if not layout.is_supported(field)]
    if unsupported:
        raise ValueError(
            f"{files[0]} holds no numbers in {layout.quote_names(unsupported)}: name the arrays or "
            "columns to write with --keys NAME,...; columns of strings become the numbers of "
            "their classes"
        )
    return dataset
