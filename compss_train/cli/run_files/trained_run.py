"""``TrainedRun``: the trainer and data of a run that has trained, and sample files named on a command line."""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.data import Dataset, load_array, read_data, read_validation_data
from compss_train.cli.run_files.errors import ErrorCollector, InvalidValueError, RunFileError, require
from compss_train.cli.run_files.model import ModelSpec, read_model
from compss_train.cli.run_files.objects import resolve
from compss_train.cli.run_files.options import NONE
from compss_train.cli.run_files.run_file import RunFile, read_run_file
from compss_train.cli.run_files.run_folder import RunFolder
from compss_train.cli.run_files.trust import check_trust
from compss_train.data import FileDataset
from compss_train.data.block import Block, load_block
from compss_train.data.layout import quote_names
from compss_train.data.locations import file_names
from compss_train.data.readers import ImageFolderReader, TableReader, as_reader
from compss_train.data.row_ranges import RowRange
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import as_blocked


@dataclass(frozen=True)
class TrainedRun:
    """A run with its files; used inside ``open_run``."""

    file: RunFile
    model: ModelSpec | None
    errors: ErrorCollector

    def training_data(self) -> Dataset:
        """Return the data the run was trained on; raise ``RunFileError`` with all errors of its file."""
        data = read_data(self.file, self.errors, **self._arguments())
        self.errors.raise_errors()
        return require(data)[0]

    def validation_data(self) -> Dataset:
        """Return the run's validation data; raise ``RunFileError`` with all errors of its file."""
        data = read_validation_data(self.file, self.errors, **self._arguments())
        self.errors.raise_errors()
        return require(data)

    def trainer(self, *, best: bool = False) -> DistributedTrainer:
        """Return a trainer with the final parameters, else those of the last checkpoint, or of the ``best`` one.

        Raises ``RunFileError`` with all errors of the run's file, and if the run has saved no parameters.
        """
        self.errors.raise_errors()
        folder = RunFolder(self.file.path.parent)
        trainer = require(self.model).build_trainer()
        if best or not folder.parameters.exists():
            _restore(folder, trainer, best=best)
        else:
            trainer.set_parameters(parameters.load(folder.parameters))
        return trainer

    def _arguments(self) -> dict[str, int]:
        if self.model is None:
            return {"num_workers": 1, "seed": 0}
        return {"num_workers": self.model.num_workers, "seed": self.model.seed}


@contextmanager
def open_run(path: Path, settings: Iterable[str] = (), *, trusted: bool = False) -> Iterator[TrainedRun]:
    """Read the file of the run in a folder; inside the block, the current folder is the run's home.

    Unless it is ``trusted``, the modules that it imports are named before, and another user's file is an error.
    """
    run_file = read_run_file(path, settings, hint="give the folder that compss-train fit printed at its end")
    check_trust(run_file, trusted=trusted)
    with run_file.working_directory():
        errors = ErrorCollector(str(run_file.path))
        model = read_model(run_file, errors)
        if model is not None:
            model.check_build(errors)
        yield TrainedRun(run_file, model, errors)


def _restore(folder: RunFolder, trainer: DistributedTrainer, *, best: bool) -> None:
    """Load the parameters of a checkpoint; raise ``RunFileError`` if there are no checkpoints."""
    if not folder.checkpoints.is_dir():
        also = "" if best else f" and no {folder.parameters.name}"
        raise RunFileError(f"{folder.path} has no {folder.checkpoints.name}{also}; has a round of this run ended?")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about resuming the training, which does not happen here
        trainer.restore(folder.checkpoints, best=best)


def absolute_names(names: Sequence[str]) -> list[str]:
    """Return file names and patterns as absolute paths; URLs stay as they are."""
    return [name if "://" in name else os.path.abspath(name) for name in names]


def read_pair(names: Sequence[str], run_file: RunFile) -> Dataset:
    """Return x and y: two ``.npy`` files, or files that hold both under the array names of ``[data]``.

    Raises ``InvalidValueError`` if y is missing, unless ``[data]`` has none: samples are their own targets then.
    """
    if not all(name.endswith(".npy") for name in names):
        return Dataset(_file_dataset(names, run_file, ("x", "y")))
    if len(names) > 2:
        raise InvalidValueError(f"{len(names)} .npy files: give two, samples and targets")
    if len(names) == 2:
        return Dataset(load_array(names[0], "x"), load_array(names[1], "y"))
    if _array_names(run_file.section("data")).get("y", "y") is not None:
        raise InvalidValueError(
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
    options = _options_of_files(names, data)
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


def _options_of_files(names: Sequence[str], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in ``[data]`` that other files need as well: classes, and a reader of their format."""
    options = {"classes": data["classes"]} if "files" in data and "classes" in data else {}
    reader = resolve(data["reader"]) if "reader" in data else None
    if isinstance(reader, TableReader | ImageFolderReader) and type(reader) is type(as_reader(None, names)):
        options["reader"] = reader
    return options


def _array_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that ``[data]`` gives to x and y in files, ``None`` for data without y."""
    if "files" in data:
        return {role: None if data[role] == NONE else data[role] for role in ("x", "y") if role in data}
    if "x" not in data:
        return {}
    keys = {role: data[role]["key"] for role in ("x", "y") if _has_key(data, role)}
    return keys if data.get("y", NONE) != NONE else {**keys, "y": None}


def _has_key(data: Mapping[str, Any], role: str) -> bool:
    table = data.get(role)
    return isinstance(table, dict) and "file" in table and "key" in table


def _check_array(dataset: FileDataset, role: str, arrays: Sequence[str], data: Mapping[str, Any]) -> None:
    """Raise ``InvalidValueError`` if the files do not hold the array of this role."""
    name = getattr(dataset, role)
    if name is None or name in arrays:
        return
    hint = f"files are read by the names x and y: rename the array that is {role}"
    if "files" in data or _has_key(data, role):
        hint = f"--set data.{role}{'' if 'files' in data else '.key'}=NAME sets another name"
    names = quote_names(arrays)
    raise InvalidValueError(f"{dataset.files[0]} has no array {name!r} for {role}, it has {names}; {hint}")


def first_samples(x: Any) -> Block:
    """Return the first two samples of training data, or the only one."""
    if isinstance(x, FileDataset):
        key = x.training_keys(targets=False)[0]
        return x.part([0], (key,)).read(RowRange(0, 0, min(2, x.sizes[0])))[key]
    return load_block(next(as_blocked(x, 1).blocks()))[:2]
