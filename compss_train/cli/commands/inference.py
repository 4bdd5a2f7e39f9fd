"""``compss-train evaluate``, ``predict`` and ``export``: use the network that a run has trained."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train.cli.commands.base import (
    Command,
    add_run_arguments,
    add_setting_arguments,
    check_parent_folder,
    get_settings,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREDICTION_SUFFIXES = (".npy", ".npz")


def _add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    data = (
        "files with x and y (.npz, .pt, .h5; quoted patterns), or two .npy files, x and y "
        "(default: the run's validation data)"
    )
    parser.add_argument("--data", nargs="+", metavar="FILE", help=data)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_setting_arguments(parser)


def _run_evaluate(options: argparse.Namespace) -> int:
    """Print loss and metrics."""
    from compss_train.cli.run_files.errors import rejected_samples
    from compss_train.cli.run_files.messages import format_metrics
    from compss_train.cli.run_files.trained_run import absolute_names, open_run, read_pair

    files = absolute_names(options.data or ())
    with open_run(options.run, get_settings(options), trusted=options.trust) as run:
        data = read_pair(files, run.file) if files else run.validation_data()
        with run.trainer(best=options.best) as trainer, rejected_samples("evaluated"):
            result = trainer.evaluate(data.x, data.y)
    print(json.dumps(result) if options.json else format_metrics(result))
    return 0


def _add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    files = "files with samples: .npy, or .npz, .pt, .h5 with an array x; quoted patterns"
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help=files)
    output = "a .npy file, or .npz with an array called output; in the order of the samples"
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=output)
    classes = "write the index of each sample's largest output instead of the outputs"
    parser.add_argument("--classes", action="store_true", help=classes)
    add_setting_arguments(parser)


def _run_predict(options: argparse.Namespace) -> int:
    """Write the outputs and print their number."""
    if options.output.suffix not in PREDICTION_SUFFIXES:
        raise ValueError(f"--output {options.output}: give a name that ends in {' or '.join(PREDICTION_SUFFIXES)}")
    check_parent_folder(options.output)
    from compss_train.cli.run_files.errors import rejected_samples
    from compss_train.cli.run_files.trained_run import absolute_names, open_run, read_samples

    files, target = absolute_names(options.input), options.output.absolute()
    with open_run(options.run, get_settings(options), trusted=options.trust) as run:
        samples = read_samples(files, run.file)
        with run.trainer(best=options.best) as trainer, rejected_samples("predicted"):
            output = trainer.predict(samples)
    output = output.argmax(axis=1) if options.classes else output
    _save_predictions(target, output)
    print(f"{len(output):,} samples, {output.dtype} {tuple(output.shape)}, in {options.output}")
    return 0


def _save_predictions(target: Path, output: NDArray[Any]) -> None:
    import numpy as np

    from compss_train._utils.files import atomic_path

    with atomic_path(target) as path:
        if target.suffix == ".npy":
            np.save(path, output)
        else:
            np.savez(path, output=output)


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    output = "a name that ends in .onnx (the network), .safetensors or .npz (its parameters)"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=output)
    example = "for .onnx: a file with at least one sample, for shape and dtype (default: the run's data)"
    parser.add_argument("--input", metavar="FILE", help=example)
    add_setting_arguments(parser)


def _run_export(options: argparse.Namespace) -> int:
    """Write the file and print its path."""
    check_parent_folder(options.output)
    from compss_train.cli.run_files.trained_run import absolute_names, first_samples, open_run, read_samples
    from compss_train.model.export import ONNX

    target, example = options.output.absolute(), None
    files = absolute_names([options.input] if options.input else [])
    with open_run(options.run, get_settings(options), trusted=options.trust) as run:
        if target.suffix == ONNX:
            example = first_samples(read_samples(files, run.file) if files else run.training_data().x)
        run.trainer(best=options.best).export(target, example)
    print(f"written to {options.output}")
    return 0


EVALUATE = Command(
    name="evaluate",
    help="compute the loss and metrics of a run's network on its validation data or other data",
    add_arguments=_add_evaluate_arguments,
    run=_run_evaluate,
    examples="""\
  compss-train evaluate runs/spirals
  compss-train evaluate runs/spirals --best --data "test/*.npz" --json
  compss-train evaluate runs/spirals --data test-x.npy test-y.npy""",
)
PREDICT = Command(
    name="predict",
    help="write the outputs of a run's network for samples in files",
    add_arguments=_add_predict_arguments,
    run=_run_predict,
    examples="""\
  compss-train predict runs/spirals --input x.npy --output y.npy
  compss-train predict runs/spirals --best --input "new/*.npz" --output classes.npy --classes""",
)
EXPORT = Command(
    name="export",
    help="write a run's network as ONNX, or its parameters, for other programs",
    add_arguments=_add_export_arguments,
    run=_run_export,
    examples="""\
  compss-train export runs/spirals -o spirals.onnx
  compss-train export runs/spirals -o spirals.safetensors --best""",
)
