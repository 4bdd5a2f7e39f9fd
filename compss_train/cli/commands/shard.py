"""``compss-train shard``: arrays or files in, files of another size or format out."""

from __future__ import annotations

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "files of one kind (.npz, .npy, .pt, .h5) or patterns of them in quotes, or NAME=FILE.npy for each array"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=text)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--rows", type=int, required=True, help="samples of a file")
    formats = ("npz", "npz-compressed", "npy", "pt", "h5")
    parser.add_argument("--format", choices=formats, default=formats[0], help="of the files (npz)")
    pool = "mix the samples on the way, in two pools of so many (as they are)"
    parser.add_argument("--shuffle-buffer", type=int, metavar="SAMPLES", help=pool)
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are mixed (0)")


def run(options: argparse.Namespace) -> int:
    """Write the files and print how many they are."""
    from compss_train.cli.sharding import shard  # it needs torch, which other commands do without

    written = shard(
        options.inputs, options.output, options.rows, options.format, options.shuffle_buffer, options.seed
    )
    print(f"{len(written)} files in {options.output.absolute()}")
    return 0


COMMAND = Command(
    "shard",
    "write arrays, or files of one size, as files of another size or format, from which workers train",
    add_arguments,
    run,
    examples="""\
  compss-train shard x=images.npy y=labels.npy --rows 5000 --output train
  compss-train shard "train/*.npz" --rows 20000 --format h5 --shuffle-buffer 50000 --output mixed""",
)
