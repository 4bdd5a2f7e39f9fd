"""Interface of parameter servers, and checks of the arrays that are passed to them."""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train.data.block import Block

ArraySpecs: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and shape of each of several arrays."""


class ParameterServerClosedError(RuntimeError):
    """The parameter server was closed; make another one."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key holds as many arrays as ``init`` set. A parameter with copies on many devices is kept as one array: any
    number of gradients of its shape (one per device) may then be pushed, which are summed, and a pull fills any
    number of arrays. For a key of several arrays (a layer's weight and bias, for example) as many must be pushed
    and pulled.

    Arrays are numpy arrays or tensors, on any device. The caller may change pushed arrays as soon as ``push``
    returns. A pull sees every earlier push of the same key by the same client; pushes of different clients are
    never lost. Among different keys, calls with a higher priority are executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, which wraps MXNet's KVStore.

    Raises ``ValueError`` for a key that exists already (``init``) or does not exist, and for arrays of another
    shape, dtype or number; ``ParameterServerClosedError`` after ``close``.
    """

    @abstractmethod
    def init(self, parameter_id: str, value: Sequence[Block], *, optimized: bool = True) -> None:
        """Set the arrays of a new key; they are copied.

        With ``optimized=False`` pushed arrays are added to them, even if the server has an optimizer.
        """

    @abstractmethod
    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key by a step of the server's optimizer with these gradients; without an optimizer, add them."""

    @abstractmethod
    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Copy a key's arrays into ``weights``, on their devices, or into new arrays; return them."""

    @abstractmethod
    def close(self) -> None:
        """Execute all pushes, and end; may be called again."""


def check_arrays(key: str, specs: ArraySpecs, name: str, arrays: Sequence[Block]) -> None:
    """Raise ``ValueError`` unless the arrays agree with a key's arrays in number, dtypes and shapes."""
    check_sequence(name, arrays)
    check_specs(key, specs, name, specs_of(arrays))


def check_specs(key: str, specs: ArraySpecs, name: str, passed: ArraySpecs) -> None:
    """Raise ``ValueError`` unless the specs of arrays agree with those of a key."""
    if not passed or (len(specs) > 1 and len(passed) != len(specs)):
        raise ValueError(f"{key!r} holds {len(specs)} arrays, but {name} are {len(passed)}")
    for number, (dtype, shape) in enumerate(passed):
        if (dtype, shape) != (expected := specs[number if len(specs) > 1 else 0]):
            raise ValueError(
                f"{key!r} holds an array of {expected[0]} {expected[1]}, but {name}[{number}] is of "
                f"{str(dtype).removeprefix('torch.')} {shape}; dtypes and shapes must agree"
            )


def check_sequence(name: str, arrays: Sequence[Block]) -> Sequence[Block]:
    """Return a sequence of at least one array; raise ``TypeError`` or ``ValueError`` for any other value."""
    if not isinstance(arrays, list | tuple) or not all(isinstance(a, np.ndarray | torch.Tensor) for a in arrays):
        raise TypeError(f"{name} must be a list of arrays or tensors, not {type(arrays).__name__}; give [array]")
    if not arrays:
        raise ValueError(f"{name}=[]: give at least one array")
    return arrays


def specs_of(arrays: Sequence[Block]) -> ArraySpecs:
    """Return the torch dtype and the shape of each array or tensor."""
    return [
        (array.dtype if isinstance(array, torch.Tensor) else _torch_dtype(array.dtype), tuple(array.shape))
        for array in arrays
    ]


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
