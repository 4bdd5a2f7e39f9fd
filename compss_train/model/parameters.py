"""Parameters: a model's whole state_dict as named numpy arrays, and the arithmetic of merging them.

Floating entries (weights and buffers such as BatchNorm statistics) are averaged; integer and boolean entries
(counters, masks) take the maximum. Sums run in double precision and in the order given, so that the same
tree of calls gives the same bits wherever it runs. Formats numpy has no type for (bfloat16, float8) are
held as float32, which represents them exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as serialized
from torch import nn
from torch.nn.parameter import is_lazy

from compss_train.exceptions import BadFileError

Parameters = dict[str, NDArray[Any]]

FORMATS = (".npz", ".safetensors")
"""How names of files of parameters end."""

_NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def from_module(module: nn.Module) -> Parameters:
    """Return the module's state_dict as arrays in its order; on the CPU they share the module's memory."""
    return {name: _to_array(name, tensor) for name, tensor in module.state_dict().items()}


def _to_array(name: str, tensor: object) -> NDArray[Any]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"state_dict entry {name!r} is a {type(tensor).__name__}; only tensors can be exchanged between "
            "workers. Remove get_extra_state from the module or register the value as a buffer."
        )
    if is_lazy(tensor):
        raise ValueError(f"{name!r} is lazy and has no shape yet; run one batch through the network first")
    if tensor.dtype in _NOT_IN_NUMPY:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def load_into(module: nn.Module, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Copy the arrays into the module's own tensors, on whatever device and in whatever layout they are.

    Raises ``ValueError`` where names or shapes differ, naming them.
    """
    tensors = module.state_dict()
    if missing := [name for name in tensors if name not in parameters]:
        raise ValueError(f"parameters lack {missing}; the network has {list(tensors)}")
    if unknown := [name for name in parameters if name not in tensors]:
        raise ValueError(f"parameters {unknown} are not in the network, which has {list(tensors)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy(name, tensor, parameters[name])


def _copy(name: str, tensor: torch.Tensor, array: NDArray[Any]) -> None:
    if tuple(tensor.shape) != array.shape:
        raise ValueError(f"{name!r} has shape {array.shape}, the network's has {tuple(tensor.shape)}")
    tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))


def copy_of(parameters: Mapping[str, NDArray[Any]]) -> Parameters:
    """Return the same arrays in memory of their own."""
    return {name: np.array(array) for name, array in parameters.items()}


def first_not_finite(parameters: Parameters) -> str | None:
    """Return the name of the first array that holds a NaN or an infinity, ``None`` where there is none."""
    return next(
        (name for name, array in parameters.items() if array.dtype.kind in "fc" and not np.isfinite(array).all()),
        None,
    )


def check_finite(parameters: Parameters) -> None:
    """Raise ``ValueError`` naming the first array that holds a NaN or an infinity."""
    if (name := first_not_finite(parameters)) is not None:
        array = parameters[name]
        bad = int(array.size - np.isfinite(array).sum())
        raise ValueError(
            f"parameter {name!r} has {bad} NaN or infinite values of {array.size} before training; "
            "initialise the network anew or load good parameters with set_parameters"
        )


@dataclass(frozen=True)
class PartialSum:
    """What several workers' parameters add up to: the value that travels up a tree of averages."""

    values: Parameters
    """Sum of count times array in double precision for floats, the maximum for integers."""
    count: int
    """Samples behind the sum."""
    dtypes: dict[str, np.dtype[Any]]
    """The types that the mean goes back to."""


Count = int | Mapping[str, Any]
"""A number of samples, or what a task measured, which says it under ``given``."""


def partial_sum(versions: Sequence[Parameters], counts: Sequence[Count]) -> PartialSum:
    """Add up the versions, each weighted by its number of samples; without any samples, the first one."""
    first = versions[0]
    numbers = [_number(count) for count in counts]
    # Without samples there is no vote, in the maximum of integers neither.
    voting = [(v, n) for v, n in zip(versions, numbers, strict=True) if n] or [(first, 1)]
    values = {name: _accumulate([_weighted(v[name], n) for v, n in voting]) for name in first}
    return PartialSum(values, sum(numbers), {name: array.dtype for name, array in first.items()})


def _number(count: Count) -> int:
    return count if isinstance(count, int) else int(count["given"])


def _weighted(array: NDArray[Any], count: int) -> NDArray[Any]:
    if array.dtype.kind not in "fc":
        return array
    weighted: NDArray[Any] = np.multiply(array, count, dtype=np.result_type(array.dtype, np.float64))
    return weighted


def _accumulate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if arrays[0].dtype.kind not in "fc":
        return np.asarray(np.maximum.reduce(arrays)) if len(arrays) > 1 else arrays[0]
    total = np.array(arrays[0])
    for array in arrays[1:]:
        total += array
    return total


def add(partials: Sequence[PartialSum]) -> PartialSum:
    """Add partial sums, in the order given; those of no samples count only where there are no others."""
    counted = [p for p in partials if p.count] or partials[:1]
    values = {name: _accumulate([p.values[name] for p in counted]) for name in counted[0].values}
    return PartialSum(values, sum(p.count for p in counted), counted[0].dtypes)


def mean(partials: Sequence[PartialSum]) -> Parameters:
    """Return the weighted mean behind the partial sums, in the parameters' own types."""
    total = add(partials)
    return {name: _divide(array, total.count, total.dtypes[name]) for name, array in total.values.items()}


def _divide(array: NDArray[Any], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    # For float32 and one version this is exact: count * w has at most 53 bits below 2**29 samples.
    return np.asarray(array / max(count, 1) if dtype.kind in "fc" else array).astype(dtype, copy=False)


def average(versions: Sequence[Parameters], counts: Sequence[Count]) -> Parameters:
    """Return Σ nᵢ·wᵢ / Σ nᵢ; a single version is returned as it is."""
    return versions[0] if len(versions) == 1 else mean([partial_sum(versions, counts)])


class Merged(Parameters):
    """Parameters under commutative merging, which remember how many samples have been merged into them."""

    samples: int = 0


def apply_delta(
    current: Parameters,
    base: Parameters,
    trained: Parameters,
    count: Count,
    total: int,
    buffers: Collection[str] = (),
) -> Merged:
    """Return the global parameters after a worker that trained ``count`` of a round's ``total`` samples.

    Weights become current + count/total · (trained - base): additions of several workers' changes commute, so
    that their order changes rounding only. The names in ``buffers`` are statistics, which shrink faster than a
    stale base allows for (a variance would turn negative), so they are moved towards the worker's instead: with
    one update a worker to the weighted mean in any order, later by count/total. Integers take the maximum.
    """
    count = _number(count)
    samples = getattr(current, "samples", 0) + count
    merged = Merged()
    merged.samples = samples
    for name, array in current.items():
        if array.dtype.kind not in "fc":
            merged[name] = np.maximum(array, trained[name])
        elif name in buffers:
            merged[name] = _between(array, trained[name], count / max(1, min(samples, total)))
        else:
            merged[name] = _shifted(array, base[name], trained[name], count / total)
    return merged


def _shifted(array: NDArray[Any], base: NDArray[Any], trained: NDArray[Any], share: float) -> NDArray[Any]:
    shift = np.subtract(trained, base, dtype=np.result_type(array.dtype, np.float64))
    shift *= share
    shift += array
    return np.asarray(shift).astype(array.dtype, copy=False)


def _between(array: NDArray[Any], trained: NDArray[Any], share: float) -> NDArray[Any]:
    mean = np.multiply(array, 1 - share, dtype=np.result_type(array.dtype, np.float64))
    mean += np.multiply(trained, share, dtype=mean.dtype)
    return np.asarray(mean).astype(array.dtype, copy=False)


def halve(current: Parameters, trained: Parameters) -> Parameters:
    """Return (current + trained) / 2, dislib's commutative rule: the last to arrive counts half."""
    return {
        name: _between(array, trained[name], 0.5) if array.dtype.kind in "fc" else np.maximum(array, trained[name])
        for name, array in current.items()
    }


def save(path: str | Path, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays to a ``.safetensors`` or ``.npz`` file, chosen by the suffix."""
    path = Path(path)
    if path.suffix == ".safetensors":
        arrays = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in parameters.items()}
        path.write_bytes(serialized(arrays))  # files of safetensors' own may be read by nobody else
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.asarray(array) for name, array in parameters.items()})  # type: ignore[arg-type]
    else:
        raise ValueError(f"cannot save parameters to {path.name!r}; use the suffix .safetensors or .npz")


def load(path: str | Path) -> Parameters:
    """Read the arrays back from a file that ``save`` wrote, in its order for ``.npz``.

    Raises ``BadFileError`` for a file that is damaged, and ``ValueError`` for another suffix.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
    except (SafetensorError, BadZipFile, ValueError, EOFError) as error:
        raise BadFileError(str(path), f"is damaged, or no file of parameters: {error}") from error
    raise ValueError(f"cannot load parameters from {path.name!r}; use the suffix .safetensors or .npz")
