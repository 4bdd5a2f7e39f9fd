"""``compss-train export``: what a run has trained as a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command, add_run, add_run_settings, check_folder, settings_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    output = "a name that ends in .onnx (the network), .safetensors or .npz (its parameters)"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=output)
    example = "for .onnx: a file with a sample or more, which shows shape and dtype (the run's data)"
    parser.add_argument("--input", metavar="FILE", help=example)
    add_run_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    check_folder(options.output)
    from compss_train.cli.run_files.inputs import absolute, first_samples, read_samples
    from compss_train.cli.run_files.loading import open_run
    from compss_train.model.export import ONNX  # it needs torch, which other commands do without

    target, example = options.output.absolute(), None
    files = absolute([options.input] if options.input else [])
    with open_run(options.run, settings_of(options)) as run:
        if target.suffix == ONNX:
            example = first_samples(read_samples(files, run.file) if files else run.data()[0])
        run.trainer(best=options.best).export(target, example)
    print(f"written to {options.output}")
    return 0


COMMAND = Command(
    "export",
    "write what a run has trained to a file for other programs: ONNX, or parameters",
    add_arguments,
    run,
    examples="""\
  compss-train export runs/spirals -o spirals.onnx
  compss-train export runs/spirals -o spirals.safetensors --best""",
)
