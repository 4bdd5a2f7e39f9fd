"""The parameter server in the memory of a process, and what it holds under each key."""

import copy
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train.data.block import Block, as_tensor
from compss_train.exceptions import ParameterServerClosedError
from compss_train.model.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory
from compss_train.parameter_server.interface import ArraySpecs, Key, ParameterServer, check_key

_SHOWN_KEYS = 10
"""How many keys an error shows."""


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
        """The optimizer of the arrays, which are its parameters then."""
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
        """Return one gradient per array: several of a single array, as from devices, are summed."""
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
        self._entries: dict[Key, Entry] = {}
        self._adding = threading.Lock()
        """Held while a key is added."""
        self._closed = False

    def entry(self, key: Key) -> Entry:
        """Return the entry of a key; raise ``ValueError`` if it does not exist."""
        self._check_open()
        try:
            return self._entries[key]
        except KeyError:
            keys = ", ".join(map(repr, list(self._entries)[:_SHOWN_KEYS])) or "none"
            raise ValueError(
                f"{key!r} does not exist; call init first. Existing keys: {keys}"
            ) from None

    def _init(
        self,
        key: Key,
        value: Sequence[Block],
        *,
        optimized: bool,
        saved: dict[str, Any] | None = None,
    ) -> None:
        self._check_open()
        entry = Entry(value, self.optimizer if optimized else None, saved)
        with self._adding:
            if key in self._entries:
                raise ValueError(f"{key!r} exists already; push to it, or use another key")
            self._entries[key] = entry

    def save(self, parameter_id: Key) -> dict[str, Any]:
        """Return copies."""
        entry = self.entry(check_key(parameter_id))
        with entry.lock:
            return entry.state()

    def load(self, parameter_id: Key, saved: dict[str, Any], *, optimized: bool = True) -> None:
        """Copy what was saved."""
        key = check_key(parameter_id)
        self._init(key, saved["values"], optimized=optimized, saved=saved["optimizer"])

    def _push(self, key: Key, grads: Sequence[Block], priority: int) -> None:
        copies = [cpu_copy(grad) for grad in grads]
        entry = self.entry(key)
        with entry.lock:
            entry.update(copies)

    def _pull(self, key: Key, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        entry = self.entry(key)
        with entry.lock:
            if weights is None:
                return [value.clone() for value in entry.values]
            copy_values(entry.values, weights)
        return weights

    def _specs(self, key: Key) -> ArraySpecs:
        return self.entry(key).specs

    def _check_open(self) -> None:
        if self._closed:
            raise ParameterServerClosedError("the parameter server was closed; make another one")

    def close(self) -> None:
        """Accept no further calls; may be called again."""
        self._closed = True


def _add(value: torch.Tensor, grad: torch.Tensor) -> None:
    """Add in this thread alone.

    torch would use several threads, which wait for one another on busy machines.
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
