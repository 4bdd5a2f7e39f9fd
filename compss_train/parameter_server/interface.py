"""The interface of parameter servers, and the checks of the arrays that are pushed and pulled."""

from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils import Closable, validation
from compss_train.data.block import Block, as_tensor

Key: TypeAlias = str | int
"""What the parameters of a server are stored under."""

ArraySpecs: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and shape of each of several arrays."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key is a text or an integer. It is one parameter, or several (a layer's weight and bias, for
    example). For one parameter, any number of gradients may be pushed, such as one from each
    device, and they are summed; a pull fills any number of arrays. For a key with several
    parameters, push and pull exactly one array for each.

    Arrays are numpy arrays or tensors, on any device. The caller may change pushed arrays as soon
    as ``push`` returns. A pull sees every earlier push of the same key by the same client; pushes
    of different clients are never lost. Among different keys, calls with a higher priority are
    executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, which wraps MXNet's KVStore.

    Raises ``ValueError`` for a key that already exists (``init``) or does not exist, and for arrays
    of another shape, dtype or number; ``TypeError`` for a key that is neither text nor integer;
    ``ParameterServerClosedError`` after ``close``.
    """

    def init(self, parameter_id: Key, value: Sequence[Block], *, optimized: bool = True) -> None:
        """Set the arrays of a new key, one for each of its parameters; they are copied.

        With ``optimized=False`` pushed arrays are added to them, even if the server has an
        optimizer.
        """
        key = check_key(parameter_id)
        self._init(key, check_sequence("value", value), optimized=optimized)

    def push(self, parameter_id: Key, grads: Sequence[Block], priority: int = 0) -> None:
        """Step the server's optimizer with the gradients of a key; without one, add them to it.

        With ``serve`` this happens later, while this program continues; a push waits while too many
        others are unanswered.
        """
        key = check_key(parameter_id)
        check_arrays(key, self._specs(key), "grads", arrays=grads)
        self._push(key, grads, validation.check_integer("priority", priority))

    def pull(
        self, parameter_id: Key, weights: Sequence[Block] | None = None, priority: int = 0
    ) -> Sequence[Block]:
        """Copy a key's arrays into ``weights``, on any devices, or new tensors; return these."""
        key = check_key(parameter_id)
        if weights is not None:
            check_arrays(key, self._specs(key), "weights", arrays=weights)
        return self._pull(key, weights, validation.check_integer("priority", priority))

    @abstractmethod
    def save(self, parameter_id: Key) -> dict[str, Any]:
        """Return a key's arrays and its optimizer's state, as plain values and tensors."""

    @abstractmethod
    def load(self, parameter_id: Key, saved: dict[str, Any], *, optimized: bool = True) -> None:
        """Make a new key, as ``init`` does, that goes on from what ``save`` has returned."""

    @abstractmethod
    def _init(self, key: Key, value: Sequence[Block], *, optimized: bool) -> None:
        """Set the arrays of a new key."""

    @abstractmethod
    def _push(self, key: Key, grads: Sequence[Block], priority: int) -> None:
        """Update a key; the gradients match it."""

    @abstractmethod
    def _pull(self, key: Key, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        """Copy the arrays of a key into ``weights``, which fit it, or into new arrays."""

    @abstractmethod
    def _specs(self, key: Key) -> ArraySpecs:
        """Return the dtypes and shapes of a key's arrays; raise ``ValueError`` for a new key."""

    @abstractmethod
    def close(self) -> None:
        """Execute all pushes and end; may be called again."""


def check_key(parameter_id: Any) -> Key:
    """Return a key as it is sent; raise ``TypeError`` unless it is a text or an integer."""
    is_integer = isinstance(parameter_id, Integral) and not isinstance(parameter_id, bool)
    if is_integer:
        return int(parameter_id)
    if not validation.is_text(parameter_id):
        raise TypeError(f"parameter_id={parameter_id!r}: give a text or an integer")
    return str(parameter_id)


def check_arrays(key: Key, specs: ArraySpecs, name: str, arrays: Sequence[Block]) -> None:
    """Raise ``ValueError`` unless arrays agree with a key's in number, dtypes and shapes."""
    check_specs(key, specs, name, passed=specs_of(check_sequence(name, arrays)))


def check_specs(key: Key, specs: ArraySpecs, name: str, passed: ArraySpecs) -> None:
    """Raise ``ValueError`` unless the specs of arrays agree with those of a key."""
    if not passed or (len(specs) > 1 and len(passed) != len(specs)):
        raise ValueError(f"{key!r} holds {len(specs)} arrays, but {name} are {len(passed)}")
    for number, spec in enumerate(passed):
        expected = specs[number if len(specs) > 1 else 0]
        if spec != expected:
            dtype, shape = spec
            raise ValueError(
                f"{key!r} holds an array of {expected[0]} {expected[1]}, but {name}[{number}] is "
                f"of {str(dtype).removeprefix('torch.')} {shape}; dtypes and shapes must agree"
            )


def check_sequence(name: str, arrays: Sequence[Block]) -> Sequence[Block]:
    """Return a sequence of arrays; raise ``TypeError`` for others, ``ValueError`` for none."""
    is_sequence = isinstance(arrays, list | tuple)
    if not is_sequence or not all(isinstance(array, np.ndarray | torch.Tensor) for array in arrays):
        raise TypeError(
            f"{name} must be a list of arrays or tensors, not {type(arrays).__name__}; give [array]"
        )
    if not arrays:
        raise ValueError(f"{name}=[]: give at least one array")
    return arrays


def specs_of(arrays: Sequence[Block]) -> ArraySpecs:
    """Return the torch dtype and the shape of each array or tensor."""
    specs: ArraySpecs = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            dtype = as_tensor(np.empty(0, array.dtype)).dtype
        else:
            dtype = array.dtype
        specs.append((dtype, tuple(array.shape)))
    return specs
