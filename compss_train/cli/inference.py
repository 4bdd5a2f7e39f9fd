"""``compss-train evaluate`` and ``predict``: use a network that has been trained."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from compss_train._utils import strict_json
from compss_train._utils.files import atomic_path, check_folder
from compss_train.cli import fit, run_files
from compss_train.cli.inference_samples import identifiers_of, read_pair, read_samples
from compss_train.cli.prediction_tables import table_of, table_of_probabilities, write_table
from compss_train.cli.run_files import data
from compss_train.cli.trained_runs import open_run
from compss_train.data import locations
from compss_train.data.arrow_columns import import_pyarrow
from compss_train.model.error_hints import kind_of
from compss_train.trainer import DistributedTrainer

TABLE_SUFFIXES = (".csv", ".parquet")
PREDICTION_SUFFIXES = (".npy", ".npz", *TABLE_SUFFIXES)


def evaluate(options: argparse.Namespace) -> int:
    """Print loss and metrics."""
    files = [locations.absolute(name) for name in options.data]
    with open_run(options) as (file, trainer):
        samples = read_pair(files, file, options.x) if files else _validation_data(file, trainer)
        with _rejected_samples("evaluated"):
            result = trainer.evaluate(samples.x, samples.y)
    print(strict_json.dumps(result) if options.json else fit.format_metrics(result))
    return 0


def predict(options: argparse.Namespace) -> int:
    """Write the outputs and print their number."""
    files = [locations.absolute(name) for name in options.input]
    target = options.output.absolute()
    _check_output(options)
    with open_run(options) as (file, trainer):
        samples = read_samples(files, file, x=options.x)
        identifiers = identifiers_of(samples, options.ids)
        kind = trainer.probability_kind
        asked_otherwise = options.classes or options.outputs
        by_default = target.suffix in TABLE_SUFFIXES and kind is not None and not asked_otherwise
        probabilities = options.probabilities or by_default
        with _rejected_samples("predicted"):
            output = trainer.predict(samples, probabilities=probabilities)
    if not isinstance(output, np.ndarray):
        raise ValueError(
            f"the outputs are {kind_of(output)}, and a file holds one array: let the "
            "network return one, or predict in Python, "
            f"compss_train.load({str(options.run)!r})(x)"
        )
    if options.classes:
        output = _class_numbers(output)
    with atomic_path(target) as path:
        if target.suffix in TABLE_SUFFIXES:
            section = file.section("data")
            classes = data.classes_of(section).get(str(section.get("y", "y")), ())
            if probabilities:
                columns = table_of_probabilities(output, classes, binary=kind == "binary")
            else:
                columns = table_of(output, classes, as_classes=options.classes)
            write_table(path, options.ids or "sample", identifiers, columns=columns)
        elif target.suffix == ".npy":
            np.save(path, output)
        else:
            np.savez(path, output=output)
    print(f"{len(output):,} samples, {output.dtype} {tuple(output.shape)}, in {options.output}")
    return 0


def _check_output(options: argparse.Namespace) -> None:
    """Raise the errors of ``--output`` and ``--ids``."""
    suffix = options.output.suffix
    if suffix not in PREDICTION_SUFFIXES:
        raise ValueError(
            f"--output {options.output}: give a name that ends in {', '.join(PREDICTION_SUFFIXES)}"
        )
    if options.ids is not None and suffix not in TABLE_SUFFIXES:
        suffixes = " and ".join(TABLE_SUFFIXES)
        raise ValueError(f"--ids {options.ids}: only {suffixes} files have rows that it names")
    if suffix == ".parquet":
        import_pyarrow()  # or say at once that it is missing
    check_folder(options.output)


def _class_numbers(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the index of each sample's largest output."""
    if output.shape[1:2] in ((), (1,)):
        raise ValueError(
            f"--classes: the outputs have the shape {output.shape}, a single one for each "
            "sample, which is no class; leave --classes out, and compare them with a "
            "threshold"
        )
    numbers: np.ndarray[Any, Any] = output.argmax(axis=1)
    return numbers


def _validation_data(file: run_files.RunFile, trainer: DistributedTrainer) -> data.Dataset:
    """Return the validation data; reads training data only to split them."""
    section = file.section("validation")
    if not section:
        raise ValueError(f"{file.path}: the run has no validation data to evaluate on; give --data")
    if data.FRACTION not in section:
        return data.read_validation(file)
    errors = run_files.Errors()
    _, validation = data.read_data(file, errors, num_workers=trainer.num_workers, seed=trainer.seed)
    errors.check(file.path)
    return validation or data.Dataset(None)


@contextmanager
def _rejected_samples(verb: str) -> Iterator[None]:
    """Convert errors of a network into a ``ValueError`` that says what samples cannot be."""
    try:
        yield
    except (RuntimeError, ArithmeticError, LookupError) as error:
        message = f"these samples cannot be {verb}: {error}"
        raise ValueError(run_files.append_notes(message, error)) from error
