"""Interface of parameter servers, and checks of the arrays that are passed to them."""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train._utils.validation import check_integer
from compss_train.data.block import Block

ArraySpecs: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and shape of each of several arrays."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key is one parameter, or several (a layer's weight and bias, for example). For one parameter, any number of
    gradients may be pushed, such as one from each device: they are summed; and a pull fills any number of arrays.
    For a key of several parameters, the numbers of pushed gradients and pulled weights must equal that of the
    parameters.

    Arrays are numpy arrays or tensors, on any device. The caller may change pushed arrays as soon as ``push``
    returns. A pull sees every earlier push of the same key by the same client; pushes of different clients are
    never lost. Among different keys, calls with a higher priority are executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, which wraps MXNet's KVStore.

    Raises ``ValueError`` for a key that exists already (``init``) or does not exist, and for arrays of another
    shape, dtype or number; ``ParameterServerClosedError`` after ``close``.
    """

    def init(self, parameter_id: str, value: Sequence[Block], *, optimized: bool = True) -> None:
        """Set the arrays of a new key, one for each of its parameters; they are copied.

        With ``optimized=False`` pushed arrays are added to them, even if the server has an optimizer.
        """
        self._init(parameter_id, check_sequence("value", value), optimized)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key by a step of the server's optimizer with these gradients; without an optimizer, add them.

        A served server does that later, while this program continues; a push waits while too many others are
        unanswered.
        """
        check_arrays(parameter_id, self._specs(parameter_id), "grads", grads)
        self._push(parameter_id, grads, check_integer("priority", priority))

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Copy a key's arrays into ``weights``, on their devices, or into new arrays; return them."""
        if weights is not None:
            check_arrays(parameter_id, self._specs(parameter_id), "weights", weights)
        return self._pull(parameter_id, weights, check_integer("priority", priority))

    @abstractmethod
    def _init(self, key: str, value: Sequence[Block], optimized: bool) -> None:
        """Set the arrays of a new key."""

    @abstractmethod
    def _push(self, key: str, grads: Sequence[Block], priority: int) -> None:
        """Update a key; the gradients match it."""

    @abstractmethod
    def _pull(self, key: str, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        """Copy the arrays of a key into ``weights``, which fit it, or into new arrays."""

    @abstractmethod
    def _specs(self, key: str) -> ArraySpecs:
        """Return the dtypes and shapes of a key's arrays; raise ``ValueError`` if the key does not exist."""

    @abstractmethod
    def close(self) -> None:
        """Execute all pushes, and end; may be called again."""


def check_arrays(key: str, specs: ArraySpecs, name: str, arrays: Sequence[Block]) -> None:
    """Raise ``ValueError`` unless the arrays agree with a key's arrays in number, dtypes and shapes."""
    check_specs(key, specs, name, specs_of(check_sequence(name, arrays)))


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
