"""``compss-train predict``: outputs of what a run has trained."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train.cli.commands.base import Command, add_run, add_run_settings, check_folder, settings_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIXES = (".npy", ".npz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    files = "files with samples: .npy, or .npz, .pt, .h5 with an array x; patterns in quotes"
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help=files)
    output = "a .npy file, or .npz for an array called output; in the order of the samples"
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=output)
    classes = "write the number of each sample's largest output, not the outputs"
    parser.add_argument("--classes", action="store_true", help=classes)
    add_run_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Write the outputs and print how many they are."""
    if options.output.suffix not in SUFFIXES:
        raise ValueError(f"--output {options.output}: give a name that ends in {' or '.join(SUFFIXES)}")
    check_folder(options.output)
    from compss_train.cli.run_files.inputs import (  # it needs torch, which other commands do without
        absolute,
        read_samples,
    )
    from compss_train.cli.run_files.loading import open_run
    from compss_train.cli.run_files.problems import of_samples

    files, target = absolute(options.input), options.output.absolute()
    with open_run(options.run, settings_of(options)) as run:
        samples = read_samples(files, run.file)
        with run.trainer(best=options.best) as trainer, of_samples("predicted"):
            output = trainer.predict(samples)
    output = output.argmax(axis=1) if options.classes else output
    _write(target, output)
    print(f"{len(output):,} samples, {output.dtype} {tuple(output.shape)}, in {options.output}")
    return 0


def _write(target: Path, output: NDArray[Any]) -> None:
    import numpy as np

    from compss_train._utils.files import replacing

    with replacing(target) as path:
        if target.suffix == ".npy":
            np.save(path, output)
        else:
            np.savez(path, output=output)


COMMAND = Command(
    "predict",
    "write the outputs for samples in files of what a run has trained",
    add_arguments,
    run,
    examples="""\
  compss-train predict runs/spirals --input x.npy --output y.npy
  compss-train predict runs/spirals --best --input "new/*.npz" --output classes.npy --classes""",
)
