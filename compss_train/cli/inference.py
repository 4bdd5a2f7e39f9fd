"""``compss-train evaluate``, ``predict`` and ``export``: use the network that a run has trained."""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np

from compss_train._utils.files import atomic_path
from compss_train.cli.fit import format_metrics
from compss_train.cli.run_files import Errors, RunFile, RunFileError, Table, append_notes, read_run_file
from compss_train.cli.run_files.data import Dataset, load_array, read_data, read_validation_data
from compss_train.cli.run_files.objects import check_trust, resolve
from compss_train.cli.run_files.options import NONE
from compss_train.cli.run_files.run_folder import RunFolder, check_parent_folder
from compss_train.cli.run_files.sections import ModelSpec, read_model
from compss_train.data import FileDataset
from compss_train.data.block import Block, load_block
from compss_train.data.layout import quote_names
from compss_train.data.locations import file_names
from compss_train.data.readers import ImageFolderReader, TableReader, as_reader
from compss_train.data.row_ranges import RowRange
from compss_train.model import parameters
from compss_train.model.export import ONNX
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import as_blocked

T = TypeVar("T")
P = ParamSpec("P")

PREDICTION_SUFFIXES = (".npy", ".npz")


def evaluate(options: argparse.Namespace) -> int:
    """Print loss and metrics."""
    files = _absolute_names(options.data)
    with _open_run(options) as (file, model):
        shares = {"num_workers": model.num_workers, "seed": model.seed}
        if files:
            data = read_pair(files, file)
        else:
            data = _checked(file, "[validation]", read_validation_data, file, **shares)
        with _trainer(file, model, best=options.best) as trainer, _rejected_samples("evaluated"):
            result = trainer.evaluate(data.x, data.y)
    print(json.dumps(result) if options.json else format_metrics(result))
    return 0


def predict(options: argparse.Namespace) -> int:
    """Write the outputs and print their number."""
    files, target = _absolute_names(options.input), options.output.absolute()
    if target.suffix not in PREDICTION_SUFFIXES:
        raise ValueError(f"--output {options.output}: give a name that ends in {' or '.join(PREDICTION_SUFFIXES)}")
    check_parent_folder(options.output)
    with _open_run(options) as (file, model):
        samples = read_samples(files, file)
        with _trainer(file, model, best=options.best) as trainer, _rejected_samples("predicted"):
            output = trainer.predict(samples)
    output = output.argmax(axis=1) if options.classes else output
    with atomic_path(target) as path:
        if target.suffix == ".npy":
            np.save(path, output)
        else:
            np.savez(path, output=output)
    print(f"{len(output):,} samples, {output.dtype} {tuple(output.shape)}, in {options.output}")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write the file and print its path."""
    check_parent_folder(options.output)
    target, example = options.output.absolute(), None
    files = _absolute_names([options.input] if options.input else [])
    with _open_run(options) as (file, model):
        if target.suffix == ONNX:
            data = _checked(file, "", read_data, file, num_workers=model.num_workers, seed=model.seed)
            example = _first_samples(read_samples(files, file) if files else data[0].x)
        _trainer(file, model, best=options.best).export(target, example)
    print(f"written to {options.output}")
    return 0


@contextmanager
def _open_run(options: argparse.Namespace) -> Iterator[tuple[RunFile, ModelSpec]]:
    """Read the file of the run in a folder; inside the block, the current folder is the run's home.

    Unless it is trusted, the modules that it imports are named before, and another user's file is an error.
    """
    hint = "give the folder that compss-train fit printed at its end"
    file = read_run_file(options.run, options.settings, hint)
    check_trust(file, trusted=options.trust)
    with file.working_directory():
        yield file, _checked(file, "", read_model, file)


def _checked(file: RunFile, where: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns; raise what it raises as a ``RunFileError`` about the file."""
    errors = Errors()
    result = errors.attempt(where, function, *args, **kwargs)
    if result is None:
        raise errors.found(str(file.path))
    return result


def _trainer(file: RunFile, model: ModelSpec, *, best: bool) -> DistributedTrainer:
    """Return a trainer with the final parameters, else those of the last checkpoint, or of the ``best`` one.

    Raises ``RunFileError`` if the run has saved no parameters.
    """
    folder = RunFolder(file.path.parent)
    trainer = _checked(file, "[build]", model.build_trainer)
    if not best and folder.parameters.exists():
        trainer.set_parameters(parameters.load(folder.parameters))
        return trainer
    if not folder.checkpoints.is_dir():
        also = "" if best else f" and no {folder.parameters.name}"
        raise RunFileError(f"{folder.path} has no {folder.checkpoints.name}{also}; has a round of this run ended?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about resuming the training, which does not happen here
        trainer.restore(folder.checkpoints, best=best)
    return trainer


@contextmanager
def _rejected_samples(verb: str) -> Iterator[None]:
    """Convert errors that a network raises into a ``ValueError``: these samples cannot be ``verb``, and why."""
    try:
        yield
    except (RuntimeError, ArithmeticError, LookupError) as error:
        raise ValueError(append_notes(f"these samples cannot be {verb}: {error}", error)) from error


def _absolute_names(names: Sequence[str]) -> list[str]:
    """Return file names and patterns as absolute paths; URLs stay as they are."""
    return [name if "://" in name else os.path.abspath(name) for name in names]


def read_pair(names: Sequence[str], run_file: RunFile) -> Dataset:
    """Return x and y: two ``.npy`` files, or files that hold both under the array names of ``[data]``.

    Raises ``ValueError`` if y is missing, unless ``[data]`` has none: samples are their own targets then.
    """
    if not all(name.endswith(".npy") for name in names):
        return Dataset(_file_dataset(names, run_file, ("x", "y")))
    if len(names) > 2:
        raise ValueError(f"{len(names)} .npy files: give two, samples and targets")
    if len(names) == 2:
        return Dataset(load_array(names[0], "x"), load_array(names[1], "y"))
    if _array_names(run_file.section("data")).get("y", "y") is not None:
        raise ValueError(
            f"{names[0]} is x alone: name a second .npy file, y; the same one if samples are their own targets"
        )
    return Dataset(_file_dataset(names, run_file, ("x",)))


def read_samples(names: Sequence[str], run_file: RunFile) -> FileDataset:
    """Return files that hold x, and maybe other arrays."""
    return _file_dataset(names, run_file, ("x",))


def _file_dataset(names: Sequence[str], run_file: RunFile, roles: Sequence[str]) -> FileDataset:
    """Return files that hold the arrays of these roles; a single array is x if no targets are needed."""
    data = run_file.section("data")
    array_names = _array_names(data)
    # Other files need the classes as well, and a reader of their format.
    options = {"classes": data["classes"]} if "files" in data and "classes" in data else {}
    reader = resolve(data["reader"]) if "reader" in data else None
    if isinstance(reader, TableReader | ImageFolderReader) and type(reader) is type(as_reader(None, names)):
        options["reader"] = reader
    if "y" not in roles and isinstance(array_names.get("x"), list):  # the table need not have the targets
        array_names["y"] = None
    dataset = FileDataset([file for name in names for file in file_names(name)], **array_names, **options)
    arrays = list(dataset.layout or ())
    if len(arrays) == 1 and ("y" not in roles or dataset.y is None):
        dataset.x = arrays[0]
    elif len(arrays) > 1 or array_names or "y" in data:
        for role in roles:
            _check_array(dataset, role, arrays, data)
    return dataset


def _array_names(data: Table) -> dict[str, Any]:
    """Return the names that ``[data]`` gives to x and y in files, ``None`` for data without y."""
    if "files" in data:
        return {role: None if data[role] == NONE else data[role] for role in ("x", "y") if role in data}
    if "x" not in data:
        return {}
    keys = {role: data[role]["key"] for role in ("x", "y") if _has_key(data, role)}
    return keys if data.get("y", NONE) != NONE else {**keys, "y": None}


def _has_key(data: Table, role: str) -> bool:
    table = data.get(role)
    return isinstance(table, dict) and "file" in table and "key" in table


def _check_array(dataset: FileDataset, role: str, arrays: Sequence[str], data: Table) -> None:
    """Raise ``ValueError`` if the files do not hold the array of this role."""
    name = getattr(dataset, role)
    if name is None or name in arrays:
        return
    hint = f"files are read by the names x and y: rename the array that is {role}"
    if "files" in data or _has_key(data, role):
        hint = f"--set data.{role}{'' if 'files' in data else '.key'}=NAME sets another name"
    names = quote_names(arrays)
    raise ValueError(f"{dataset.files[0]} has no array {name!r} for {role}, it has {names}; {hint}")


def _first_samples(x: Any) -> Block:
    """Return the first two samples of training data, or the only one."""
    if isinstance(x, FileDataset):
        key = x.training_keys(targets=False)[0]
        return x.part([0], (key,)).read(RowRange(0, 0, min(2, x.sizes[0])))[key]
    return load_block(next(as_blocked(x, 1).blocks()))[:2]
