"""Parameter servers: their interface, the checks of the arrays, and the server in the memory of a
process.
"""

import copy
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from compss_train._utils import Closable, validation
from compss_train.data.block import Block, as_tensor
from compss_train.exceptions import ParameterServerClosedError
from compss_train.model.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory

ArraySpecs: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and shape of each of several arrays."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key is one parameter, or several (a layer's weight and bias, for example). For one parameter,
    any number of gradients may be pushed, such as one from each device, and they are summed; a pull
    fills any number of arrays. For a key with several parameters, push and pull exactly one array
    for each.

    Arrays are numpy arrays or tensors, on any device. The caller may change pushed arrays as soon
    as ``push`` returns. A pull sees every earlier push of the same key by the same client; pushes
    of different clients are never lost. Among different keys, calls with a higher priority are
    executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, which wraps MXNet's KVStore.

    Raises ``ValueError`` for a key that already exists (``init``) or does not exist, and for arrays
    of another shape, dtype or number; ``ParameterServerClosedError`` after ``close``.
    """

    def init(self, parameter_id: str, value: Sequence[Block], *, optimized: bool = True) -> None:
        """Set the arrays of a new key, one for each of its parameters; they are copied.

        With ``optimized=False`` pushed arrays are added to them, even if the server has an
        optimizer.
        """
        self._init(parameter_id, check_sequence("value", value), optimized)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key by a step of the server's optimizer with these gradients; without an
        optimizer, add them.

        With ``serve`` this happens later, while this program continues; a push waits while too many
        others are unanswered.
        """
        check_arrays(parameter_id, self._specs(parameter_id), "grads", grads)
        self._push(parameter_id, grads, validation.check_integer("priority", priority))

    def pull(
        self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0
    ) -> Sequence[Block]:
        """Copy a key's arrays into ``weights``, on their devices, or into new tensors; return
        them.
        """
        if weights is not None:
            check_arrays(parameter_id, self._specs(parameter_id), "weights", weights)
        return self._pull(parameter_id, weights, validation.check_integer("priority", priority))

    @abstractmethod
    def save(self, parameter_id: str) -> dict[str, Any]:
        """Return a key's arrays and the state of its optimizer, as plain values and tensors, for
        ``load``.
        """

    @abstractmethod
    def load(self, parameter_id: str, saved: dict[str, Any], *, optimized: bool = True) -> None:
        """Make a new key, as ``init`` does, that continues from what ``save`` returned."""

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
        """Return the dtypes and shapes of a key's arrays; raise ``ValueError`` if the key does not
        exist.
        """

    @abstractmethod
    def close(self) -> None:
        """Execute all pushes and end; may be called again."""


def check_arrays(key: str, specs: ArraySpecs, name: str, arrays: Sequence[Block]) -> None:
    """Raise ``ValueError`` unless the arrays agree with a key's arrays in number, dtypes and
    shapes.
    """
    check_specs(key, specs, name, specs_of(check_sequence(name, arrays)))


def check_specs(key: str, specs: ArraySpecs, name: str, passed: ArraySpecs) -> None:
    """Raise ``ValueError`` unless the specs of arrays agree with those of a key."""
    if not passed or (len(specs) > 1 and len(passed) != len(specs)):
        raise ValueError(f"{key!r} holds {len(specs)} arrays, but {name} are {len(passed)}")
    for number, (dtype, shape) in enumerate(passed):
        if (dtype, shape) != (expected := specs[number if len(specs) > 1 else 0]):
            raise ValueError(
                f"{key!r} holds an array of {expected[0]} {expected[1]}, but {name}[{number}] is "
                f"of {str(dtype).removeprefix('torch.')} {shape}; dtypes and shapes must agree"
            )


def check_sequence(name: str, arrays: Sequence[Block]) -> Sequence[Block]:
    """Return a sequence of at least one array; raise ``TypeError`` or ``ValueError`` for any other
    value.
    """
    if not isinstance(arrays, list | tuple) or not all(
        isinstance(a, np.ndarray | torch.Tensor) for a in arrays
    ):
        raise TypeError(
            f"{name} must be a list of arrays or tensors, not {type(arrays).__name__}; give [array]"
        )
    if not arrays:
        raise ValueError(f"{name}=[]: give at least one array")
    return arrays


def specs_of(arrays: Sequence[Block]) -> ArraySpecs:
    """Return the torch dtype and the shape of each array or tensor."""
    none = [
        as_tensor(np.empty(0, array.dtype)) if isinstance(array, np.ndarray) else array
        for array in arrays
    ]
    return [(each.dtype, tuple(array.shape)) for each, array in zip(none, arrays, strict=True)]


class Entry:
    """A key's arrays, and the optimizer that updates them, if any. For one thread at a time.

    The optimizer continues from its ``saved`` state, if there is one.
    """

    def __init__(
        self,
        value: Sequence[Block],
        optimizer: OptimizerFactory | None,
        saved: dict[str, Any] | None,
    ) -> None:
        self._values: list[torch.Tensor] = [cpu_copy(block) for block in value]
        self.specs: ArraySpecs = [(value.dtype, tuple(value.shape)) for value in self._values]
        """The dtypes and shapes of the arrays."""
        self._optimizer: torch.optim.Optimizer | None = None
        self.lock = threading.Lock()
        """For servers with several threads."""
        if optimizer is not None:
            parameters = [nn.Parameter(value) for value in self._values]
            self._values = list(parameters)
            self._optimizer = optimizer(parameters)
            if saved is not None:
                self._optimizer.load_state_dict(saved)

    @property
    def values(self) -> Sequence[torch.Tensor]:
        """The arrays themselves, which the next update changes."""
        return [value.detach() for value in self._values]

    def state(self) -> dict[str, Any]:
        """Return copies of the arrays, and the state of the optimizer or ``None``, for ``load``."""
        optimizer = None if self._optimizer is None else copy.deepcopy(self._optimizer.state_dict())
        return {"values": [value.clone() for value in self.values], "optimizer": optimizer}

    @torch.no_grad()
    def update(self, grads: Sequence[torch.Tensor]) -> None:
        """Take a step of the optimizer with the gradients, or add them."""
        sums = self._sums(grads)
        if self._optimizer is None:
            for value, grad in zip(self._values, sums, strict=True):
                _add(value, grad)
            return
        for value, grad in zip(self._values, sums, strict=True):
            value.grad = grad
        self._optimizer.step()
        for value in self._values:
            value.grad = None

    def _sums(self, grads: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return one gradient per array; gradients of a single array, from several devices, are
        summed.
        """
        if len(self._values) > 1 or len(grads) == 1:
            return grads
        total = grads[0].clone()
        for grad in grads[1:]:
            total += grad
        return [total]


class LocalParameterServer(ParameterServer):
    """Hold parameters in this process's memory, for any number of threads.

    Parameters
    ----------
    optimizer:
        The optimizer that updates a key with pushed gradients, as for ``build``: ``{"optimizer":
        "sgd", "lr": 0.1}``, for example. ``None``, the default, adds pushed arrays.

    The calling thread executes a call at once, so priorities have no effect. Threads that call the
    same key wait for one another.
    """

    def __init__(self, optimizer: OptimizerSpec | None = None) -> None:
        self.optimizer = None if optimizer is None else optimizer_factory(optimizer)
        self._entries: dict[str, Entry] = {}
        self._adding = threading.Lock()
        self._closed = False

    def entry(self, key: str) -> Entry:
        """Return the entry of a key; raise ``ValueError`` if it does not exist."""
        self._check_open()
        try:
            return self._entries[key]
        except KeyError:
            known = ", ".join(map(repr, list(self._entries)[:10])) or "none"
            raise ValueError(
                f"{key!r} does not exist; call init first. Existing keys: {known}"
            ) from None

    def _init(
        self, key: str, value: Sequence[Block], optimized: bool, saved: dict[str, Any] | None = None
    ) -> None:
        self._check_open()
        entry = Entry(value, self.optimizer if optimized else None, saved)
        with self._adding:
            if key in self._entries:
                raise ValueError(f"{key!r} exists already; push to it, or use another key")
            self._entries[key] = entry

    def save(self, parameter_id: str) -> dict[str, Any]:
        """Return copies."""
        entry = self.entry(parameter_id)
        with entry.lock:
            return entry.state()

    def load(self, parameter_id: str, saved: dict[str, Any], *, optimized: bool = True) -> None:
        """Copy what was saved."""
        self._init(parameter_id, saved["values"], optimized, saved["optimizer"])

    def _push(self, key: str, grads: Sequence[Block], priority: int) -> None:
        own = [cpu_copy(grad) for grad in grads]
        entry = self.entry(key)
        with entry.lock:
            entry.update(own)

    def _pull(self, key: str, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        entry = self.entry(key)
        with entry.lock:
            if weights is None:
                return [value.clone() for value in entry.values]
            copy_values(entry.values, weights)
        return weights

    def _specs(self, key: str) -> ArraySpecs:
        return self.entry(key).specs

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterServerClosedError("the parameter server was closed; make another one")

    def close(self) -> None:
        """Accept no further calls; may be called again."""
        self._closed = True


def _add(value: torch.Tensor, grad: torch.Tensor) -> None:
    """Add in this thread alone: torch would use several threads, which wait for one another on busy
    machines.
    """
    if value.dtype == torch.bfloat16:  # not supported by numpy
        value += grad
    else:
        array = value.numpy()
        np.add(array, grad.numpy(), out=array)


@torch.no_grad()
def copy_values(values: Sequence[torch.Tensor], weights: Sequence[Block]) -> None:
    """Copy values into arrays, in place; a single value is copied into each of them."""
    for number, weight in enumerate(weights):
        value = values[number if len(values) > 1 else 0]
        if value.numel() and as_tensor(weight).data_ptr() == value.data_ptr():
            continue  # the value was received in the weight's own memory
        if isinstance(weight, torch.Tensor):
            weight.copy_(value)
        else:
            np.copyto(np.asarray(weight), value.numpy())


def cpu_copy(block: Block) -> torch.Tensor:
    """Return a copy of an array or tensor as a contiguous tensor on the CPU."""
    if isinstance(block, torch.Tensor):
        return block.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return torch.from_numpy(np.array(block, order="C"))
