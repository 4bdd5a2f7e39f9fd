"""The sections ``[data]`` and ``[validation]``: samples from arrays, files or functions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.numpy_files import load_numpy
from compss_train._utils.validation import check_choice, check_fraction
from compss_train.cli.run_files import Errors, RunFile, TomlTable, unknown_name
from compss_train.cli.run_files.objects import CALL, NONE, call_object, keywords_of, parameters_of
from compss_train.data import BlockedTensor, FileDataset, Samples, readers, reading, samples
from compss_train.data.block import as_block
from compss_train.data.blocked import as_blocked
from compss_train.data.coding import columns_key
from compss_train.data.columns import columns_of
from compss_train.data.frames import frame_as_array, is_frame
from compss_train.data.locations import suffix_of
from compss_train.data.splitting import drawn_alike, held_out
from compss_train.training.data_source import as_data_source, holds_targets

FORMS = 'give files = "train/*.npz", or x = "x.npy" and y = "y.npy", or import = "module:function"'
FRACTION = "fraction"
"""The key of ``[validation]`` that takes a part of the samples of ``[data]``."""
STRATIFY = "stratify"
"""The key of ``[validation]`` that takes the same part of each class."""


class Dataset(NamedTuple):
    """Samples to train or evaluate on.

    ``x`` is an array, a blocked tensor, or a ``FileDataset``, which also holds y. ``weight`` holds
    the weights of the samples in the training loss.
    """

    x: Any
    y: Any = None
    weight: Any = None


def named_arrays(
    x: str | dict[str, Any],
    y: str | dict[str, Any] | None = None,
    weight: str | dict[str, Any] | None = None,
    blocks: int | list[int] | None = None,
) -> Dataset:
    """Return arrays that a section names, cut into blocks.

    Each is a file, a table of file and key, or an object.
    """
    names = {"x": x, "y": y, "weight": weight}
    arrays = {role: load_array(name, role) for role, name in names.items() if name is not None}
    return _in_grid(Dataset(**arrays), blocks)


FILES = parameters_of(FileDataset)
"""The keys of a section that names files of samples."""
ARRAYS = parameters_of(named_arrays)
"""The keys of a section that names arrays."""


def read_data(
    run_file: RunFile, errors: Errors, *, num_workers: int, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Return training data and validation data; collects the errors of the two sections."""
    data = Dataset(None)
    validation = None
    with errors.collect("[data]"):
        data = read_section(run_file.section("data"))
        as_data_source(data.x, data.y, num_workers)
    with errors.collect("[validation]"):
        section = run_file.section("validation")
        unknown = [key for key in section if key not in (FRACTION, STRATIFY)]
        if FRACTION in section and unknown:
            message = unknown_name(unknown[0], (FRACTION, STRATIFY), "key")
            raise ValueError(f"{message}, which takes from [data]")
        if FRACTION in section and data.x is not None:
            stratify = section.get(STRATIFY, False)
            check_choice(STRATIFY, stratify, (True, False))
            data, validation = split_validation(data, section[FRACTION], seed, stratify=stratify)
        if section and FRACTION not in section:
            validation = read_validation(run_file, getattr(data.x, "classes", None))
        if validation is not None:
            as_data_source(validation.x, validation.y, num_workers)
    return data, validation


def read_section(table: TomlTable) -> Dataset:
    """Return the samples that a section names; raise ``ValueError`` for an invalid section."""
    if "files" in table:
        return Dataset(FileDataset(**keywords_of(table, FILES)))
    if CALL in table:
        returned = call_object({key: value for key, value in table.items() if key != "blocks"})
        parts = returned if isinstance(returned, tuple | list) else [returned]
        if not 1 <= len(parts) <= 3:
            count = f"{table[CALL]} returned {len(parts)} values"
            raise ValueError(f"{count}; give x and y, x alone, or x, y and weights")
        blocks = table.get("blocks", NONE)
        return _in_grid(Dataset(*parts), None if blocks == NONE else blocks)
    if "x" not in table:
        raise ValueError(f"it names no samples; {FORMS}")
    return named_arrays(**keywords_of(table, ARRAYS))


def read_validation(run_file: RunFile, classes: Any = None) -> Dataset:
    """Return the samples that ``[validation]`` names.

    Of files, what it leaves out is as in ``[data]``. ``classes`` are those of the training data, if
    known.
    """
    section = run_file.section("validation")
    if "files" not in section:
        return read_section(section)
    data = run_file.section("data")
    if classes and "files" in data:
        data["classes"] = classes
    first = section["files"][0] if isinstance(section["files"], list) else section["files"]
    return read_section({**array_names(data, str(first)), **section})


def array_names(section: TomlTable, file: str) -> TomlTable:
    """Return the part of ``[data]`` that says how the arrays in files are named and read.

    ``file`` is the first of those to read.
    """
    names: TomlTable = {}
    reader = readers.READERS.get(suffix_of(file), readers.TableReader)
    classes = classes_of(section)
    if classes and issubclass(reader, readers.TableReader):  # arrays have none
        names["classes"] = classes
    if "files" in section:
        return names | {key: section[key] for key in ("x", "y", "reader") if key in section}
    for role in ("x", "y"):
        table = section.get(role)
        if isinstance(table, dict) and "file" in table and "key" in table:
            names[role] = table["key"]
    if "x" in section and section.get("y", NONE) == NONE:
        names["y"] = NONE
    return names


def classes_of(section: TomlTable) -> TomlTable:
    """Return the classes by column in ``[data]``.

    Where that has a function, ``classes`` may be an argument of its own, which is no table.
    """
    classes = section.get("classes")
    return classes if isinstance(classes, dict) else {}


def load_array(value: Any, role: str) -> Any:
    """Return the array in a file, or in ``{ file = ..., key = ... }``.

    An array is returned unchanged. A ``.npy`` file is memory-mapped. ``key``, by default ``role``,
    selects one of several arrays in a file.
    """
    key = role
    if isinstance(value, dict) and "file" in value:
        unknown = [name for name in value if name not in ("file", "key")]
        if unknown:
            raise ValueError(f"{role}: {unknown_name(unknown[0], ('file', 'key'), 'key')}")
        key = value.get("key", role)
        value = value["file"]
    if not isinstance(value, str):
        return value
    if value.endswith(".npy"):
        return load_numpy(value, mmap_mode="r")
    names = list(readers.as_reader(None, [value]).describe(value).layout or ())
    return reading.read_arrays([value], names[0] if len(names) == 1 else key)[0]


def _in_grid(dataset: Dataset, grid: Any) -> Dataset:
    """Return samples with arrays cut into the blocks of a grid; without a grid, unchanged."""
    if grid is None:
        return dataset
    parts = {}
    for role, part in _parts(dataset).items():
        if holds_targets(part):
            advice = "leave blocks out; Samples(dataset, blocks=...) cuts a data set"
            raise ValueError(
                f"blocks={grid!r} cuts arrays, and {role} is a {type(part).__name__}: {advice}"
            )
        parts[role] = columns_of(part, role)
    columns = _all_columns(parts)
    if any(hasattr(column, "tensors") for column in columns.values()):
        raise ValueError("these samples are in blocks or files already; leave blocks out")
    # The fit cuts frames into the blocks of the arrays, and knows what their numbers mean.
    frames = [name for name, column in columns.items() if is_frame(column) and name != "weight"]
    if set(frames) == columns.keys() - {"weight"}:
        for name in frames:
            _check_no_categories(columns[name], name, grid)
        frames = []

    def cut(name: str, column: Any) -> Any:
        return column if name in frames else BlockedTensor.from_array(column, grid)

    return _mapped(parts, cut)


def _check_no_categories(frame: Any, name: str, grid: Any) -> None:
    """Raise ``ValueError`` if blocks of arrays would not say what the numbers of a frame mean."""
    coding = frame_as_array(frame, name, None).coding
    if coding.keys() - {columns_key(name)}:
        raise ValueError(
            f"blocks={grid!r} cuts arrays, and {name} is a {type(frame).__name__} with "
            "categories: leave blocks out, or give an array beside it, such as y.to_numpy(), "
            "whose blocks it takes"
        )


Parts: TypeAlias = Mapping[str, tuple[Any, dict[str, Any]]]
"""The structure and the columns of x, y and weights, as ``columns_of`` returns them."""


def _parts(dataset: Dataset) -> dict[str, Any]:
    """Return x, y and weights by their names, without those that there are not."""
    return {role: part for role, part in dataset._asdict().items() if part is not None}


def _all_columns(parts: Parts) -> dict[str, Any]:
    """Return the columns of all parts by name."""
    return {name: column for _, columns in parts.values() for name, column in columns.items()}


def _mapped(parts: Parts, function: Callable[[str, Any], Any]) -> Dataset:
    """Return samples with ``function(name, column)`` for each column."""
    mapped = {}
    for role, (structure, columns) in parts.items():
        results = [function(name, column) for name, column in columns.items()]
        mapped[role] = rebuilt(structure, results)
    return Dataset(**mapped)


def split_validation(
    dataset: Dataset, fraction: Any, seed: int, *, stratify: bool = False
) -> tuple[Dataset, Dataset]:
    """Return training data and validation data, a fraction of the samples drawn by the seed.

    Of files, parts are drawn (``FileDataset.split``); with ``stratify``, samples of each class.
    Raises ``ValueError`` for a fraction that leaves either empty, for samples without numbers, and
    for ``stratify`` without a class for each sample.
    """
    check_fraction(FRACTION, fraction)
    if isinstance(dataset.x, FileDataset):
        training_files, validation_files = dataset.x.split(fraction, seed=seed, stratify=stratify)
        return Dataset(training_files), Dataset(validation_files)
    parts = {role: _in_rows(part, role) for role, part in _parts(dataset).items()}
    lengths = {
        name: len(column.dataset if isinstance(column, Samples) else column)
        for name, column in _all_columns(parts).items()
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"x, y and weights have different lengths: {listed}")
    number = next(iter(lengths.values()))
    if stratify:
        is_held_out = drawn_alike(_classes_of(parts), fraction, seed)
        held_out_rows = np.flatnonzero(is_held_out)
        training_rows = np.flatnonzero(~is_held_out)
    else:
        count = held_out(number, fraction)
        order = np.random.default_rng(seed).permutation(number)
        held_out_rows = np.sort(order[:count])
        training_rows = np.sort(order[count:])
    validation = _mapped(parts, partial(_selected, held_out_rows))
    training = _mapped(parts, partial(_selected, training_rows))
    arrays = [leaf for leaf in leaves(list(dataset)) if leaf is not None and not is_frame(leaf)]
    were_blocked = bool(arrays) and all(isinstance(array, BlockedTensor) for array in arrays)
    return _in_grid(training, arrays[0].shape if were_blocked else None), validation


def _classes_of(parts: Mapping[str, tuple[Any, dict[str, Any]]]) -> NDArray[Any]:
    """Return the class of each sample; raise ``ValueError`` if y is no single column of classes."""
    columns = [*parts["y"][1].values()] if "y" in parts else []
    classes: NDArray[Any] = np.asarray(columns[0]) if len(columns) == 1 else np.empty(0)
    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]
    if classes.ndim != 1 or classes.dtype.kind == "f":
        raise ValueError(
            f"{STRATIFY} = true needs y with a class for each sample: give one array or column of "
            "integers or strings, or leave it out"
        )
    return classes


def _in_rows(part: Any, role: str) -> tuple[Any, dict[str, Any]]:
    """Return the structure of samples and their columns: what ``_selected`` takes."""
    by_number = samples.as_samples(part)
    if by_number is None:
        structure, columns = columns_of(part, role)
        return structure, {name: _as_rows(column) for name, column in columns.items()}
    if by_number.is_stream:
        raise ValueError(
            f"{FRACTION}: samples of streams have no numbers; name others, as in [data]"
        )
    return None, {role: by_number}


def _as_rows(column: Any) -> Any:
    """Return a frame, or an array in one block."""
    if is_frame(column):
        return column
    return as_blocked(column, 1).collect() if hasattr(column, "tensors") else as_block(column)


def _selected(rows: NDArray[np.intp], name: str, column: Any) -> Any:
    """Return some samples of a data set, a frame or an array, by number."""
    if isinstance(column, Samples):
        return column.select(rows.tolist())
    return column.iloc[rows] if hasattr(column, "iloc") else column[rows]
