"""``compss-train evaluate`` and ``predict``, and ``load``: use a network that has been trained."""

import argparse
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils import strict_json
from compss_train._utils.files import atomic_path, check_folder
from compss_train.cli import fit, run_files
from compss_train.cli.prediction_tables import table_of, table_of_probabilities, write_table
from compss_train.cli.run_files import data, objects, training, trust
from compss_train.data import FileDataset, locations, readers, reading
from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.readers.base import select_keys
from compss_train.data.readers.images import SUFFIXES as IMAGE_SUFFIXES
from compss_train.exceptions import BadFileError
from compss_train.model import parameters, saved_state
from compss_train.model.attributes.reader import NETWORK
from compss_train.model.error_hints import kind_of
from compss_train.model.model_state import model_state, of_network, restore
from compss_train.trainer import DistributedTrainer
from compss_train.training import checkpoints
from compss_train.training.remote_checkpoints import local_copy

TABLE_SUFFIXES = (".csv", ".parquet")
PREDICTION_SUFFIXES = (".npy", ".npz", *TABLE_SUFFIXES)


def evaluate(options: argparse.Namespace) -> int:
    """Print loss and metrics."""
    files = [locations.absolute(name) for name in options.data]
    with _open_run(options) as (file, trainer):
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
    with _open_run(options) as (file, trainer):
        samples = read_samples(files, file, x=options.x)
        identifiers = _identifiers(samples, options.ids)
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


def _identifiers(samples: FileDataset, name: str | None) -> list[Any]:
    """Return the values of a column of tables, or of an array; without a name, files and rows.

    Raises ``BadFileError`` if a file lacks it.
    """
    if name is None:
        return [row for block in samples.blocks.values() for row in block.row_names()]
    reader = samples.reader
    identifiers = []
    rows_of_files = {block.path: block.file_rows for block in samples.blocks.values()}
    for path, rows in rows_of_files.items():
        with reading.bad_file_errors(path):
            if isinstance(reader, readers.TableReader):
                with reader.open(path, [name]) as table:
                    select_keys([name], table.schema.names)
                    identifiers += table.rows(0, rows, [name])[name].to_pylist()
            else:
                arrays, *_ = reader.read(path, 0, rows, [name])
                identifiers += np.asarray(arrays[name]).tolist()
    return identifiers


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


def load(
    path: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    best: bool = False,
    trust: bool = False,
) -> nn.Module:
    """Return a trained network in evaluation mode, on the CPU, for inference in another program.

    Nothing is unpickled, and checksums are verified. A ``transform`` of ``build`` is not part of
    the network.

    Parameters
    ----------
    path:
        A file of ``trainer.save`` (``.safetensors``, ``.npz``) or of a state_dict (``.pt``,
        ``.pth``), or the folder of a ``Checkpoint``, whose newest good one is taken, also
        ``"s3://..."``; or, without ``net``, the folder of a run of ``compss-train fit``.
    net:
        A network of the same structure, which gets the parameters and is returned. ``None``
        (default) makes the network of the run, for which its modules are imported; a line on
        standard error names them.
    best:
        For a run: the parameters of its best checkpoint instead of the final ones.
    trust:
        For a run: do not name its modules, and import them also if they belong to another user.

    Raises ``ValueError`` for a network of another structure, ``BadFileError`` for a damaged file,
    and ``FileNotFoundError``.
    """
    if net is not None:
        with local_copy(path) as local:
            if local.is_dir():
                _, content = checkpoints.read_latest_checkpoint(local, warn=True)
                arrays = parameters.NamedArrays(content["parameters"])
                for worker in content["workers"][:1]:
                    arrays.state = model_state(worker["module_buffers"], worker.get("attributes"))
            else:
                arrays = parameters.load(local)
            parameters.load_into(net, arrays)
        if arrays.state is not None:
            restore(of_network(arrays.state, net), net, {NETWORK: net})
        return net.eval()
    if locations.is_remote(os.fspath(path)) or Path(path).is_file():
        raise TypeError(
            f"load({Path(path).name!r}) needs the network, too: give load(path, net); only a "
            "folder that compss-train fit wrote on this machine names its network"
        )
    with torch.random.fork_rng(devices=()):  # a run seeds torch before it makes its network
        options = argparse.Namespace(
            run=Path(path), settings=(), trust=trust, best=best, averaged=False
        )
        with _open_run(options) as (_, trainer):
            return trainer.model()


@contextmanager
def _open_run(
    options: argparse.Namespace,
) -> Iterator[tuple[run_files.RunFile, DistributedTrainer]]:
    """Yield the file of the run in a folder, and its trainer with the final or best parameters.

    A killed run provides the parameters of its last checkpoint. In the block, the current folder is
    the run's home. Unless the run is trusted, the modules that its file imports are named before,
    and another user's file is an error. Raises ``RunFileError`` if the run has saved no parameters.
    """
    hint = "give the folder that compss-train fit printed at its end"
    file = run_files.read_run_file(options.run, options.settings, hint)
    trust.check_trust(file, trusted=options.trust)
    folder = run_files.RunFolder(file.path.parent)
    errors = run_files.Errors()
    with trust.working_directory(file):
        trainer = training.read_trainer(file, errors)
        errors.check(file.path)
        if options.averaged and not options.best and folder.averaged.exists():
            trainer.set_parameters(parameters.load(folder.averaged))
        elif not options.best and not options.averaged and folder.parameters.exists():
            final = parameters.load(folder.parameters)
            if folder.sha256() not in (None, saved_state.sha256_of(final)):
                state = folder.state_file.name
                reason = f"does not hold the parameters whose SHA-256 is in {state}"
                raise BadFileError(str(folder.parameters), reason)
            trainer.set_parameters(final)
        elif folder.checkpoints.is_dir():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fits continue")  # no fit does
                trainer.restore(folder.checkpoints, best=options.best)
            if options.averaged:
                trainer.set_parameters(trainer.get_parameters(averaged=True))
        elif options.averaged and folder.parameters.exists():
            raise run_files.RunFileError(
                f"--averaged: {folder.path} has no {folder.averaged.name}; a run keeps an average "
                "with averaging in [fit.merge]"
            )
        else:
            missing = f"no {folder.checkpoints.name}"
            if not options.best:
                missing += f" and no {folder.parameters.name}"
            raise run_files.RunFileError(
                f"{folder.path} has {missing}; has a round of this run ended?"
            )
        with trainer:
            yield file, trainer


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


def read_pair(
    names: Sequence[str], run_file: run_files.RunFile, x: Sequence[str] = ()
) -> data.Dataset:
    """Return x and y: two ``.npy`` files, or files that hold both.

    Their arrays have the names of ``[data]``, or x that of ``x``.
    """
    if not all(name.endswith(".npy") for name in names):
        return data.Dataset(read_samples(names, run_file, x=x, targets=True))
    if len(names) != 2:
        raise ValueError(
            f"{names[0]} is x alone: name one other .npy file, y; the same one if samples are "
            "their own targets"
        )
    return data.Dataset(data.load_array(names[0], "x"), data.load_array(names[1], "y"))


def _files_of(name: str) -> list[str]:
    """Return the files of a name or pattern; of a folder of images without classes, the images."""
    if not os.path.isdir(name):
        return locations.file_names(name)
    below = locations.files_below(name)
    images = [file for file in below if file.lower().endswith(IMAGE_SUFFIXES)]
    if not images or any("/" in file for file in images):
        return locations.file_names(name)
    return [os.path.join(name, file) for file in sorted(images)]


def read_samples(
    names: Sequence[str],
    run_file: run_files.RunFile,
    *,
    x: Sequence[str] = (),
    targets: bool = False,
) -> FileDataset:
    """Return files that hold x, and with ``targets`` y.

    A single array is x if no targets are needed. ``x`` names an array, or several columns, in place
    of what ``[data]`` says.
    """
    files = [file for name in names for file in _files_of(name)]
    section = data.array_names(run_file.section("data"), files[0])
    if x:
        section["x"] = [*x] if len(x) > 1 else x[0]
    if not targets:  # the files need not have them
        section["y"] = objects.NONE
    dataset = FileDataset(**objects.keywords_of({"files": files, **section}, data.FILES))
    unknown = [name for name in dataset.classes if name not in section.get("classes", {})]
    if unknown and isinstance(dataset.reader, readers.TableReader):
        raise ValueError(
            f"{files[0]} holds strings in {unknown[0]!r}, and the run does not say which classes "
            f"these were in training: --set \"data.classes={{{unknown[0]}=['a', 'b']}}\" names "
            "them in the order of their codes"
        )
    arrays = list(dataset.layout or ())
    if len(arrays) == 1 and not x and not (targets and dataset.y):
        dataset.x = arrays[0]
    try:
        dataset.training_keys(targets=targets)
    except ValueError as error:
        hint = (
            "--set data.x=NAME where [data] has files, --set data.x.key=NAME where it has x, or --x"
        )
        raise ValueError(f"{error}. For a run: {hint}; else rename the array") from error
    return dataset
