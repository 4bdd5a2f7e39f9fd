"""Parameters: the tensors in the state_dict of a model as named numpy arrays, and their files.

Floating entries are weights, and buffers such as BatchNorm statistics; integer and boolean entries
are counters and masks. Formats that numpy does not have (bfloat16, float8) are stored as float32,
which represents them exactly.
"""

import base64
import errno
import hashlib
import math
import os
import struct
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils import files, validation
from compss_train._utils.numpy_files import load_numpy
from compss_train._utils.private_names import spectral_vectors, state_tensors
from compss_train.exceptions import BadFileError, DivergedError
from compss_train.model import devices, saved_state, value_encoding
from compss_train.model.compression import Key
from compss_train.reports.formatting import Table, number
from compss_train.reports.records import Record, epoch_of, measured_numbers

Parameters = dict[str, NDArray[Any]]

FORMATS = (".npz", ".safetensors")
"""Suffixes of files of parameters."""

_TORCH_SUFFIXES = (".pt", ".pth")
"""Suffixes of files that ``torch.save`` wrote."""

_STATE = "compss_train.state"
"""The key of what the network keeps besides its parameters, in the same metadata."""

_LARGEST_STATE = 10**7
"""Maximum number of bytes of it: readers of safetensors files limit their metadata."""

_SHA256 = "compss_train.sha256"
"""The key of the checksum in the metadata of a safetensors file."""

_WITHOUT_NUMPY_TYPE = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)

_SAME_LENGTH = 1e-3
"""By how much a vector's length may differ from 1, as in a network of another dtype once."""


def from_module(module: nn.Module) -> Parameters:
    """Return the module's tensors as arrays; on the CPU they share the module's memory."""
    return to_arrays(state_tensors(module))


def to_arrays(tensors: Mapping[Key, torch.Tensor]) -> dict[Key, NDArray[Any]]:
    """Return tensors as arrays, in one copy from their device.

    Raises ``TypeError`` and ``ValueError``, with its name, for a tensor that is not dense.
    """
    on_device = [_checked(name, tensor) for name, tensor in tensors.items()]
    on_host = devices.to_host(on_device)
    return {name: tensor.numpy() for name, tensor in zip(tensors, on_host, strict=True)}


def _checked(name: object, tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of a dtype that numpy has."""
    if nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"{name!r} is lazy and has no shape yet; run one batch through the network first"
        )
    validation.check_dense(f"state_dict entry {name!r}", tensor)
    if tensor.dtype in _WITHOUT_NUMPY_TYPE:
        tensor = tensor.float()
    return tensor.contiguous()


@torch.no_grad()
def load_into(module: nn.Module, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Copy the arrays into the tensors of the module, keeping their device and layout.

    Vectors of ``spectral_norm`` get the length 1 if the mean of several workers has changed it.

    Raises ``ValueError`` if names, shapes or kinds of numbers differ, naming them, and for
    different values of one tensor that has several names.
    """
    tensors = state_tensors(module)
    wrong = sorted(tensors.keys() ^ parameters.keys())
    if wrong:
        hint = _prefix_hint(parameters, tensors)
        raise ValueError(
            f"{wrong} are missing in the parameters, or are not in the network: it has "
            f"{[*tensors]}{hint}"
        )
    names: dict[int, str] = {}
    for name, tensor in tensors.items():
        array = parameters[name]
        first = names.setdefault(id(tensor), name)
        if first != name and not has_same_bits(parameters[first], array):
            raise ValueError(
                f"{first!r} and {name!r} are one tensor in the network, and have different values: "
                "give both the same, or let the network have two tensors; where a batch replaces "
                "one of two buffers, let __init__ make two"
            )
        if tuple(tensor.shape) != array.shape:
            raise ValueError(
                f"{name!r} has shape {array.shape}, but {tuple(tensor.shape)} in the network; a "
                "network whose first batch changes shapes has to see one before it is given to "
                "build"
            )
        if array.dtype.kind not in "biufc":
            raise ValueError(f"{name!r} has dtype {array.dtype}; give numbers")
        values = torch.from_numpy(array if array.flags.carray else np.array(array, order="C"))
        if not torch.can_cast(values.dtype, tensor.dtype):  # not even up to rounding
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(
                f"{name!r} has dtype {array.dtype}, but {dtype} in the network, which cannot hold "
                "its values"
            )
        devices.copy_into(tensor, values)
    _normalize_spectral_vectors(module)


def _prefix_hint(names: Collection[str], expected: Collection[str]) -> str:
    """Return by what beginning names of parameters differ from those expected; or nothing."""
    prefix = _added_prefix(names, expected)
    if prefix:
        return (
            f"; those given begin with {prefix!r}: give {{name.removeprefix({prefix!r}): array "
            "for name, array in parameters.items()}"
        )
    prefix = _added_prefix(expected, names)
    if prefix:
        return (
            f"; those of the network begin with {prefix!r}: give {{{prefix!r} + name: array for "
            "name, array in parameters.items()}"
        )
    return ""


def _added_prefix(longer: Collection[str], shorter: Collection[str]) -> str:
    """Return what all longer names begin with, and are the shorter ones without; or nothing."""
    for name in longer:
        prefix = name.removesuffix(min(shorter, default=""))
        if prefix != name and {prefix + short for short in shorter} == set(longer):
            return prefix
    return ""


def _normalize_spectral_vectors(net: nn.Module) -> None:
    """Rescale the singular vectors of ``spectral_norm`` to length 1, which means are shorter than.

    In training, the power iteration normalizes them; evaluation uses them unchanged, and would
    divide weights by a norm that is too small by both lengths. Vectors whose length is already
    about 1 keep their bits.
    """
    for vector in chain.from_iterable(map(spectral_vectors, net.modules())):
        length = torch.linalg.vector_norm(vector)
        if length > 0 and abs(length - 1) > max(_SAME_LENGTH, torch.finfo(vector.dtype).eps):
            vector.div_(length)


def as_parameters(values: Mapping[str, Any]) -> Parameters:
    """Return arrays, tensors or lists by name as arrays.

    A warning names entries of a state_dict that are not numbers: they are left out.
    """
    of_tensors = to_arrays(
        {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    )
    arrays = {
        name: of_tensors[name] if name in of_tensors else np.asarray(value)
        for name, value in values.items()
    }
    left_out = [
        name
        for name, array in arrays.items()
        if array.dtype == object and not isinstance(values[name], np.ndarray | list | tuple)
    ]
    if left_out:
        kinds = ", ".join(f"{name!r}, a {type(values[name]).__name__}" for name in left_out)
        validation.warn_user(
            f"parameters are arrays of numbers, so that these are not set: {kinds}; what a network "
            "keeps in attributes, such as that of get_extra_state, belongs into the network that "
            "build gets"
        )
    return {name: array for name, array in arrays.items() if name not in left_out}


class NamedArrays(Parameters, validation.Suggesting):
    """Parameters that a program or notebook shows in a line or a table, without their values."""

    record: Record | None = None
    """The last record of the fit that has returned them."""
    state: dict[str, Any] | None = None
    """What the network keeps besides them, as plain values, if that is known."""

    _meaning = (
        "; fit returns the parameters, a dict of arrays: see the trainer's history, "
        "model() and evaluate()"
    )

    def __repr__(self) -> str:
        numbers = sum(array.size for array in self.values())
        arrays = f"{len(self)} arrays of {numbers:,} numbers"
        if self.record is None:
            return arrays
        last = epoch_of(self.record) | measured_numbers(self.record)
        values = ", ".join(f"{name} {number(value)}" for name, value in last.items())
        return f"{values} ({arrays})"

    def _repr_html_(self) -> str:
        if self.record is not None:
            last = epoch_of(self.record) | measured_numbers(self.record)
            return Table(repr(self), [*last], [[*map(number, last.values())]])._repr_html_()
        return table(self, repr(self))._repr_html_()


def table(
    tensors: Mapping[str, Any], caption: str, kinds: Mapping[str, str] | None = None
) -> Table:
    """Return a table of arrays or tensors: their names, sizes, and kinds if these are given."""
    columns: dict[str, list[str]] = {
        "name": [*tensors],
        "shape": [str(tuple(tensor.shape)) for tensor in tensors.values()],
        "dtype": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "numbers": [f"{math.prod(tensor.shape):,}" for tensor in tensors.values()],
        "bytes": [f"{tensor.nbytes:,}" for tensor in tensors.values()],
    }
    if kinds is not None:
        columns["kind"] = [kinds[name] for name in tensors]
    return Table(caption, [*columns], [*zip(*columns.values(), strict=True)])


def copy_of(parameters: Mapping[str, NDArray[Any]]) -> Parameters:
    """Return copies of the arrays."""
    return {name: np.array(array) for name, array in parameters.items()}


def first_not_finite(parameters: Parameters) -> str | None:
    """Return the name of the first array with a NaN or infinite value, or ``None``."""
    for name, array in parameters.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return name
    return None


def first_diverged(after: Parameters, before: Parameters) -> str | None:
    """Return the name of the first array that has become NaN or infinite, or ``None``.

    What was so before may stay so: masks of minus infinity, or minima that begin at infinity.
    """
    for name, array in after.items():
        if array.dtype.kind not in "fc" or np.isfinite(array).all():
            continue
        for is_kind in (np.isnan, np.isinf):
            if is_kind(array).any() and not is_kind(before[name]).any():
                return name
    return None


def has_same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether two arrays are the same, also in NaN and signs of 0."""
    if first is second:
        return True
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    if not first.size:
        return True
    if first.item(0) != second.item(0) and first.item(0) == first.item(0):
        return False  # as of most arrays that have changed
    return first.tobytes() == second.tobytes()


def check_finite(parameters: Parameters, net: nn.Module) -> None:
    """Raise ``ValueError`` naming the first trained parameter with a NaN or infinite value.

    Buffers and frozen parameters of the network may have some.
    """
    trained = (name for name, weight in net.named_parameters() if weight.requires_grad)
    name = first_not_finite({name: parameters[name] for name in trained if name in parameters})
    if name is not None:
        raise ValueError(
            f"parameter {name!r} has NaN or infinite values before training; initialise the "
            "network again, or load valid parameters with set_parameters"
        )


def check_outer_step(parameters: Parameters, *inputs: Mapping[str, Any]) -> None:
    """Raise ``DivergedError`` if an outer step made finite ``inputs`` NaN or infinite.

    Workers return values that are not finite only where ``on_nan="ignore"`` lets training continue
    with them.
    """
    name = first_not_finite(parameters)
    if name is None:
        return
    arrays = (
        {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        for values in inputs
    )
    if all(first_not_finite(finite) is None for finite in arrays):
        raise DivergedError(
            f"the step of outer_optimizer= made {name!r} NaN or infinite; lower its lr or momentum"
        )


def save(
    path: str | os.PathLike[str],
    parameters: Mapping[str, NDArray[Any]],
    state: Mapping[str, Any] | None = None,
) -> str | None:
    """Write the arrays to a ``.safetensors`` or ``.npz`` file in an existing folder.

    The metadata of ``.safetensors`` also have ``state``, what a network keeps besides them, as
    plain values; a warning says if it is left out. The file is complete or not there. Returns the
    SHA-256 that a ``.safetensors`` file has in its metadata; ``.npz`` has checksums of its own.
    Raises ``ValueError`` for another suffix.
    """
    if Path(path).suffix not in FORMATS or "://" in os.fspath(path):
        raise ValueError(
            f"cannot save to {path}; use the suffix .safetensors or .npz, and a local folder; "
            "trainer.export writes .onnx and .pt2, and torch.save takes trainer.model()"
        )
    path = Path(path)
    arrays = {
        name: np.ascontiguousarray(array).reshape(array.shape) for name, array in parameters.items()
    }
    encoded = "" if state is None else _encoded_state(state)
    if state is not None and (path.suffix != ".safetensors" or len(encoded) > _LARGEST_STATE):
        validation.warn_user(
            f"{path.name} does not hold what the network keeps outside its state_dict "
            f"({', '.join([*state['buffers'], *state['attributes']][:5])}): a .safetensors file "
            "holds up to 10 MB of it, a Checkpoint all"
        )
        encoded = ""
    with files.atomic_path(path) as unfinished:
        if path.suffix == ".npz":
            np.savez(unfinished, **arrays)  # type: ignore[arg-type]
            return None
        sha256 = saved_state.sha256_of(arrays)
        # save_file's files are readable by their owner only.
        metadata = {_SHA256: sha256, **({_STATE: encoded} if encoded else {})}
        unfinished.write_bytes(safetensors.numpy.save(arrays, metadata))
        return sha256


def _encoded_state(state: Mapping[str, Any]) -> str:
    data = value_encoding.encode_value(dict(state)).numpy().tobytes()
    return f"{hashlib.sha256(data).hexdigest()} {base64.b85encode(data).decode()}"


def _decoded_state(text: str) -> dict[str, Any]:
    """Return a state that was encoded; raise ``ValueError`` if it is damaged."""
    sha256, _, encoded = text.partition(" ")
    data = base64.b85decode(encoded)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError("what the network kept does not have the SHA-256 with which it was saved")
    state: dict[str, Any] = value_encoding.decode_value(
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
    )
    return state


def load(path: str | Path) -> NamedArrays:
    """Return the arrays of a file that ``save`` wrote, if their checksum is right.

    A ``.pt`` or ``.pth`` file holds a state_dict saved by ``torch.save``, or a dict with one, as
    under ``"state_dict"`` or ``"model"``; if it has several, that is an error. Only its tensors are
    loaded (``weights_only``), so that it cannot run code.
    All but ``.safetensors`` keep the order of the arrays.

    Raises ``BadFileError`` for a damaged file, and ``ValueError`` for another suffix.
    """
    path = Path(path)
    loaders = {
        ".safetensors": _load_safetensors,
        ".npz": _load_npz,
        **dict.fromkeys(_TORCH_SUFFIXES, _load_torch),
    }
    if path.suffix not in loaders:
        raise ValueError(
            f"cannot load parameters from {path.name!r}; use the suffix .safetensors, .npz, .pt or "
            ".pth"
        )
    try:
        arrays = loaders[path.suffix](path)
        return arrays if isinstance(arrays, NamedArrays) else NamedArrays(arrays)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a damaged .npz, whose directory begins before the file
            raise
        raise BadFileError(str(path), f"is damaged: {error}") from error
    except UnpicklingError as error:
        reason = "holds more than tensors, or is damaged; save model.state_dict()"
        raise BadFileError(str(path), reason) from error
    except (
        safetensors.SafetensorError,
        BadZipFile,
        ValueError,
        TypeError,
        RuntimeError,
        EOFError,
    ) as error:
        reason = f"is damaged, or not a file of parameters: {error}"
        raise BadFileError(str(path), reason) from error


def _load_safetensors(path: Path) -> Parameters:
    with safetensors.safe_open(path, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        metadata = file.metadata() or {}
    expected = metadata.get(_SHA256)
    if expected is not None and expected != saved_state.sha256_of(arrays):
        raise ValueError("its arrays do not have the SHA-256 with which they were saved")
    loaded = NamedArrays(arrays)
    if _STATE in metadata:
        loaded.state = _decoded_state(metadata[_STATE])
    return loaded


def _load_npz(path: Path) -> Parameters:
    with path.open("rb") as file, load_numpy(file) as archive:
        arrays = dict(archive)
        file.seek(-22, os.SEEK_END)  # the end of the directory, which a comment may follow
        end, entries = struct.unpack("<4s6xH10x", file.read())
    if end == b"PK\5\6" and entries != min(len(arrays), 0xFFFF):
        raise ValueError(f"it has {len(arrays)} arrays, and had {entries}")
    return arrays


def _state_dict_in(saved: Mapping[str, Any]) -> Any:
    """Return the state_dict that a dict is or holds; raise ``ValueError`` if it holds several."""
    if "state_dict" in saved:
        return saved["state_dict"]
    state_dicts = {
        name: value
        for name, value in saved.items()
        if isinstance(value, Mapping) and value and all(map(torch.is_tensor, value.values()))
    }
    if len(state_dicts) > 1:
        first, *_ = state_dicts
        raise ValueError(
            f"it holds several state_dicts, {', '.join(map(repr, state_dicts))}: save one, "
            f"torch.save(torch.load(path)[{first!r}], path)"
        )
    return next(iter(state_dicts.values()), saved)


def _load_torch(path: Path) -> Parameters:
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state, Mapping):
        state = _state_dict_in(state)
    if not isinstance(state, Mapping):
        raise TypeError(f"it holds a {type(state).__name__}, not a state_dict")
    if not any(map(torch.is_tensor, state.values())):
        raise TypeError(f"it holds {', '.join(map(repr, state)) or 'nothing'}, and no tensors")
    return as_parameters({str(name): value for name, value in state.items()})
