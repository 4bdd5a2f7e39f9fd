"""Parameters in the memory of a process: a key's arrays with their optimizer, and a server for its threads."""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from compss_train.data.block import Block, as_tensor
from compss_train.exceptions import ParameterServerClosedError
from compss_train.model.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory
from compss_train.parameter_server.base import ArraySpecs, ParameterServer


class Entry:
    """A key's arrays, and the optimizer that updates them, if any. For one thread at a time."""

    def __init__(self, key: str, value: Sequence[Block], optimizer: OptimizerFactory | None) -> None:
        self._values: list[torch.Tensor] = [cpu_copy(block) for block in value]
        self.specs: ArraySpecs = [(value.dtype, tuple(value.shape)) for value in self._values]
        """The dtypes and shapes of the arrays."""
        self._is_array = [isinstance(block, np.ndarray) for block in value]
        self._optimizer: torch.optim.Optimizer | None = None
        self.lock = threading.Lock()
        """For servers with several threads."""
        if optimizer is not None:
            _check_steps(key, self.specs)
            parameters = [nn.Parameter(value) for value in self._values]
            self._values, self._optimizer = list(parameters), optimizer(parameters)

    @property
    def values(self) -> Sequence[torch.Tensor]:
        """The arrays themselves, which the next update changes."""
        return [value.detach() for value in self._values]

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
        """Return one gradient per array; gradients of a single array, from several devices, are summed."""
        if len(self._values) > 1 or len(grads) == 1:
            return grads
        total = grads[0].clone()
        for grad in grads[1:]:
            total += grad
        return [total]

    def copies(self) -> list[Block]:
        """Return copies of the arrays: numpy arrays or tensors, as they were passed to ``init``."""
        own = [(value.clone(), is_array) for value, is_array in zip(self.values, self._is_array, strict=True)]
        return [tensor.numpy() if is_array else tensor for tensor, is_array in own]


class LocalParameterServer(ParameterServer):
    """Hold parameters in this process's memory, for any number of threads.

    Parameters
    ----------
    optimizer:
        The optimizer that updates a key with pushed gradients, as for ``build``: ``{"optimizer": "sgd",
        "lr": 0.1}``, for example. ``None``, the default, adds pushed arrays.

    A call is executed at once, by the thread that makes it, so that priorities have no effect. Threads that call
    the same key wait for one another.
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
            raise ValueError(f"{key!r} does not exist; call init first. Existing keys: {known}") from None

    def _init(self, key: str, value: Sequence[Block], optimized: bool) -> None:
        self._check_open()
        entry = Entry(key, value, self.optimizer if optimized else None)
        with self._adding:
            if key in self._entries:
                raise ValueError(f"{key!r} exists already; push to it, or use another key")
            self._entries[key] = entry

    def _push(self, key: str, grads: Sequence[Block], priority: int) -> None:
        own, entry = [cpu_copy(grad) for grad in grads], self.entry(key)
        with entry.lock:
            entry.update(own)

    def _pull(self, key: str, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        entry = self.entry(key)
        with entry.lock:
            if weights is None:
                return entry.copies()
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


def _check_steps(key: str, specs: ArraySpecs) -> None:
    """Raise ``ValueError`` for arrays that no optimizer can step."""
    integers = [dtype for dtype, _ in specs if not (dtype.is_floating_point or dtype.is_complex)]
    if integers:
        raise ValueError(
            f"{key!r} has an array of {integers[0]}, which the server's optimizer cannot step: give "
            "optimized=False, so that pushes are added to it, or convert it to float32"
        )


def _add(value: torch.Tensor, grad: torch.Tensor) -> None:
    """Add in this thread alone: torch would use several threads, which wait for one another on busy machines."""
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
