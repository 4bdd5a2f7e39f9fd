"""The sections ``[data]`` and ``[validation]``: samples from arrays, files or functions, and their split."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train.cli.run_files import Errors, RunFile, Table, unknown_name
from compss_train.cli.run_files.objects import CALL, PREFIX, call_object, resolve
from compss_train.cli.run_files.options import NONE, Key, parse_options, signature_options
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import as_block
from compss_train.data.files import read_arrays
from compss_train.data.readers import as_reader
from compss_train.data.samples import Samples, as_samples
from compss_train.training.data_source import as_data_source

FORMS = 'give files = "train/*.npz", or x = "x.npy" and y = "y.npy", or import = "module:function"'
FRACTION = "fraction"
"""The key of ``[validation]`` that takes a part of the samples of ``[data]``."""


class Dataset(NamedTuple):
    """Samples to train or evaluate on.

    ``x`` is an array, a blocked tensor, or a ``FileDataset``, which holds y, too. ``weight`` holds the weights of
    the samples in the training loss.
    """

    x: Any
    y: Any = None
    weight: Any = None


BLOCKS = {"blocks": Key(int | list | None, None)}
"""The key for the grid that x, y and weights are cut into unless they are in files."""
ARRAYS = {
    "x": Key(str | dict),
    **dict.fromkeys(("y", "weight"), Key(str | dict | None, None)),
    **BLOCKS,
}
"""Keys of a section that names arrays: each a file, a table of file and key, or an object."""


def read_data(run_file: RunFile, *, num_workers: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return training data and validation data; raise ``RunFileError`` with all errors."""
    errors = Errors()
    data = errors.attempt("[data]", read_section, "[data]", run_file.section("data"))
    section = run_file.section("validation")
    validation_data = None
    if FRACTION not in section:
        if section:
            validation_data = errors.attempt("[validation]", read_section, "[validation]", section)
    elif unknown := [key for key in section if key != FRACTION]:
        message = f"{unknown_name(unknown[0], (FRACTION,))}, which takes from [data]"
        errors.add(f"[validation] {unknown[0]}", message)
    elif data is not None:
        both = errors.attempt("[validation]", split_validation, data, section[FRACTION], seed)
        data, validation_data = both or (data, None)
    for where, dataset in (("[data]", data), ("[validation]", validation_data)):
        if dataset is not None:
            errors.attempt(where, as_data_source, dataset.x, dataset.y, num_workers)
    if data is None or errors.messages:
        raise errors.found("")
    return data, validation_data


def read_validation_data(run_file: RunFile, *, num_workers: int, seed: int) -> Dataset:
    """Return the validation data; reads training data only to split them."""
    section = run_file.section("validation")
    if FRACTION not in section and section:
        return read_section("[validation]", section)
    data = read_data(run_file, num_workers=num_workers, seed=seed)[1] if section else None
    if data is None:
        raise ValueError("the run has no validation data to evaluate on; give --data")
    return data


def read_section(where: str, table: Table) -> Dataset:
    """Return the samples that a section names; raise ``RunFileError`` with all errors of its keys."""
    if "files" in table:
        return Dataset(FileDataset(**parse_options(where, table, signature_options(FileDataset))))
    if CALL in table:
        call = {key: value for key, value in table.items() if key != "blocks"}
        dataset = _as_dataset(call_object(call), table[CALL])
    elif "x" not in table:
        raise ValueError(f"it names no samples; {FORMS}")
    else:
        errors = Errors()
        for key in (key for key in table if key not in ARRAYS):
            errors.add(f"{where} {key}", unknown_name(key, ARRAYS))
        roles = [role for role in Dataset._fields if role in table and (role == "x" or table[role] != NONE)]
        arrays = {role: errors.attempt(f"{where} {role}", load_array, table[role], role) for role in roles}
        errors.check()
        dataset = Dataset(**arrays)
    if (blocks := table.get("blocks", NONE)) in (None, NONE):
        return dataset
    if any(isinstance(part, FileDataset | BlockedTensor) for part in dataset):
        raise ValueError("these samples are in blocks or files already; leave blocks out")
    return _in_grid(dataset, blocks)


def _as_dataset(returned: Any, name: str) -> Dataset:
    """Return what a function has returned as x, y and weights."""
    if not isinstance(returned, tuple | list):
        return Dataset(returned)
    if len(returned) not in (2, 3):
        count = len(returned)
        raise ValueError(f"{name} returned {count} values; give x and y, x alone, or x, y and weights")
    return Dataset(*returned)


def load_array(value: Any, role: str) -> Any:
    """Return the array that ``value`` names: a file, ``{ file = ..., key = ... }``, or an object.

    A ``.npy`` file is memory-mapped. ``key``, by default ``role``, selects one of several arrays in a file.
    """
    if isinstance(value, dict) and "file" in value and CALL not in value:
        if unknown := [key for key in value if key not in ("file", "key")]:
            raise ValueError(unknown_name(unknown[0], ("file", "key")))
        return _read_file(value["file"], value.get("key", role))
    if isinstance(value, str) and not value.startswith(PREFIX):
        return _read_file(value, role)
    return resolve(value)


def _read_file(name: Any, key: str) -> Any:
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no file name; give a string")
    if name.endswith(".npy"):
        return np.load(name, mmap_mode="r", allow_pickle=False)
    names = list(as_reader(None, [name]).describe(name).layout or ())
    return read_arrays([name], names[0] if len(names) == 1 else key)[0]


def _in_grid(dataset: Dataset, grid: Any) -> Dataset:
    return Dataset(*(None if part is None else BlockedTensor.from_array(part, grid) for part in dataset))


def split_validation(dataset: Dataset, fraction: Any, seed: int) -> tuple[Dataset, Dataset]:
    """Return training data and validation data, a fraction of random samples, or of whole files.

    The same seed chooses the same samples. Raises ``ValueError`` for a fraction that leaves either empty.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"fraction = {fraction!r}: give a number between 0 and 1")
    number, unit, select = _selection(dataset)
    count = round(number * fraction)
    if not 0 < count < number:
        raise ValueError(f"fraction = {fraction} of {number} {unit} is {count}; give another fraction")
    order = np.random.default_rng(seed).permutation(number)
    training, validation = select(np.sort(order[count:])), select(np.sort(order[:count]))
    return (_in_grid(training, dataset.x.shape) if isinstance(dataset.x, BlockedTensor) else training), validation


def _selection(dataset: Dataset) -> tuple[int, str, Callable[[NDArray[np.intp]], Dataset]]:
    """Return how many parts a data set has, what they are, and the function that returns a data set of some."""
    if isinstance(whole := dataset.x, FileDataset):

        def select_files(indices: NDArray[np.intp]) -> Dataset:
            selected = copy.copy(whole)
            selected.files = [whole.files[index] for index in indices]
            selected.files_len = {name: whole.files_len[name] for name in selected.files}
            return dataset._replace(x=selected)

        return len(whole.files), "files", select_files
    parts = {name: _as_indexed(part) for name, part in dataset._asdict().items() if part is not None}
    lengths = {name: len(part.dataset if isinstance(part, Samples) else part) for name, part in parts.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"x, y and weights have different lengths: {listed}")

    def select(rows: NDArray[np.intp]) -> Dataset:
        chosen = {
            name: part.select(rows.tolist()) if isinstance(part, Samples) else part[rows]
            for name, part in parts.items()
        }
        return Dataset(**chosen)

    return lengths["x"], "samples", select


def _as_indexed(part: Any) -> Any:
    """Return samples that can be selected by their numbers, or an array."""
    if isinstance(part, BlockedTensor):
        return part.collect()
    if (samples := as_samples(part)) is None:
        return as_block(part)
    if samples.is_stream:
        raise ValueError("an IterableDataset has no samples by number to take a fraction of; name others")
    return samples
