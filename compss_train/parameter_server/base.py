"""Interface of parameter servers, and checks of the arrays that are passed to them."""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train._utils.validation import check_integer
from compss_train.data.block import Block, as_tensor

ArraySpecs: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and shape of each of several arrays."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key is one parameter, or several (a layer's weight and bias, for example). Of one parameter, ``init`` gets the
    array or its replicas, one a device: any number of gradients may then be pushed, which are summed, all replicas
    are updated alike, and a pull fills any number of arrays. For a key of several parameters, the numbers of pushed
    gradients and pulled weights must equal the number of parameters.

    Arrays are numpy arrays or tensors, on any device. The caller may change pushed arrays as soon as ``push``
    returns. A pull sees every earlier push of the same key by the same client; pushes of different clients are
    never lost. Among different keys, calls with a higher priority are executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, which wraps MXNet's KVStore.

    Raises ``ValueError`` for a key that exists already (``init``) or does not exist, and for arrays of another
    shape, dtype or number; ``ParameterServerClosedError`` after ``close``.
    """

    def init(
        self,
        parameter_id: str,
        value: Sequence[Block],
        *,
        optimized: bool = True,
        replicas: bool | None = None,
    ) -> None:
        """Set the arrays of a new key; they are copied.

        ``replicas`` says whether several arrays are replicas of one parameter (``True``), or parameters of their
        own (``False``). By default arrays of one shape and the same values are replicas, and arrays of several
        shapes or dtypes are parameters of their own. With ``optimized=False`` pushed arrays are added to them, even
        if the server has an optimizer.

        Raises ``ValueError`` if ``replicas`` is needed, or ``True`` for arrays that differ.
        """
        own, number = without_replicas(parameter_id, value, replicas)
        self._init(parameter_id, own, optimized, number)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key by a step of the server's optimizer with these gradients; without an optimizer, add them.

        That happens in the background; a push waits while too many bytes are waiting.
        """
        check_arrays(parameter_id, self._specs(parameter_id), "grads", grads)
        self._push(parameter_id, grads, check_integer("priority", priority))

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Copy a key's arrays into ``weights``, on their devices, or into new arrays; return them.

        There are as many new arrays as ``init`` got.
        """
        if weights is not None:
            check_arrays(parameter_id, self._specs(parameter_id), "weights", weights)
        return self._pull(parameter_id, weights, check_integer("priority", priority))

    @abstractmethod
    def _init(self, key: str, value: Sequence[Block], optimized: bool, replicas: int) -> None:
        """Set the arrays of a new key: those of one of the ``replicas``."""

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


def without_replicas(key: str, value: Sequence[Block], replicas: bool | None) -> tuple[Sequence[Block], int]:
    """Return the arrays that ``init`` was given, each parameter once, and the number of replicas; 1 for none."""
    check_sequence("value", value)
    if replicas not in (None, True, False):
        raise ValueError(f"replicas={replicas!r}: choose True, False or None")
    alike = all(spec == specs_of(value[:1])[0] for spec in specs_of(value))
    if replicas is False or (replicas is None and not alike):
        return value, 1
    if not alike:
        listed = ", ".join(f"{str(dtype).removeprefix('torch.')} {shape}" for dtype, shape in specs_of(value))
        raise ValueError(f"replicas=True for {key!r}: replicas have one shape and dtype, these have {listed}")
    if not all(torch.equal(as_tensor(value[0]).cpu(), as_tensor(array).cpu()) for array in value[1:]):
        raise ValueError(
            f"{key!r} got {len(value)} arrays of one shape with different values: give replicas=False if each is a "
            "parameter of its own, with its own gradients; replicas of one parameter must have the same values"
        )
    return value[:1], len(value)


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
