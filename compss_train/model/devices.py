"""Devices by name: the CPU and GPUs, copies to them, and the state of random generators on them.

The random state of a worker is an input of its task, so that the task gives the same bits anywhere.
"""

import ctypes
import random
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

CPU = "cpu"


def accelerators() -> int:
    """Return how many GPUs torch sees in this process: of CUDA, ROCm or XPU, or the one of MPS."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def gpu(number: int | None = None) -> str:
    """Return the name of a GPU, by default the current one.

    Its type is that of this process's accelerator, or CUDA where it has none: tasks run elsewhere.
    """
    accelerator = None
    with suppress(RuntimeError):  # of torch 2.6, where there is none
        accelerator = torch.accelerator.current_accelerator()
    kind = "cuda" if accelerator is None else accelerator.type
    return kind if number is None else f"{kind}:{number}"


def is_gpu(device: str) -> bool:
    """Return whether a device is a GPU."""
    return not device.startswith(CPU)


_IN_MEMORY = (CPU, "mps")
"""Types of devices whose memory is the CPU's; copies to others start from pinned memory."""


def to_device(columns: Sequence[Any], device: str) -> tuple[Any, ...]:
    """Return columns on the device; copies to a GPU continue after the return, from pinned memory.

    torch's allocators reuse the pinned memory when a copy has ended, and the GPU's when its use has
    ended. Objects that a user's function made, and that have no such methods, stay as they are.
    """
    if device.startswith(_IN_MEMORY):
        return tuple(part.to(device) if hasattr(part, "to") else part for part in columns)
    return tuple(
        part.pin_memory().to(device, non_blocking=True) if hasattr(part, "pin_memory") else part
        for part in columns
    )


def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values of the CPU into a tensor; a copy to a GPU continues after the return."""
    if tensor.device.type in _IN_MEMORY:
        tensor.copy_(values)
    else:
        tensor.copy_(values.to(tensor.dtype).pin_memory(), non_blocking=True)


def to_host(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors on the CPU, with one wait for each device; those on the CPU are not copied."""
    tensors = [tensor.detach() for tensor in tensors]
    copies = [tensor.to(CPU, non_blocking=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if is_gpu(tensor.device.type)}:
        torch.accelerator.current_stream(device).synchronize()
    return copies


IN_PROCESS = threading.RLock()
"""Held by what sets the random state or number of threads of a process, which may run more fits."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of the global random generators of torch, numpy and Python."""

    cpu: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]
    gpu: torch.Tensor | None = None
    """The state of the worker's device if that is a GPU."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle words as bytes, which takes a fraction of the time.

        Small workers have nothing else as large.
        """
        version, words, gauss = self.python
        python = (version, array("I", words).tobytes(), gauss)
        numpy = self.numpy
        words_of_numpy = numpy["state"]
        if "pos" in words_of_numpy:
            numpy = {
                **numpy,
                "state": {**words_of_numpy, "key": words_of_numpy["key"].tobytes()},
            }
        return _unpickled_state, (self.cpu.numpy().tobytes(), numpy, python, self.gpu)

    @classmethod
    def capture(cls, device: str, before: "RandomState | int" = 0) -> Self:
        """Return the current states.

        If numpy's generator is still as in the state ``before``, that one's is taken: to get all of
        its words from numpy takes as long as a small layer.
        """
        if isinstance(before, RandomState) and _is_state_of_numpy(before.numpy):
            numpy = before.numpy
        else:
            numpy = np.random.get_state(legacy=False)
        gpu = None
        if is_gpu(device):
            gpu = torch.get_device_module(device).get_rng_state(*_numbered(device))
        return cls(torch.get_rng_state(), numpy, python=random.getstate(), gpu=gpu)

    def restore(self, device: str) -> None:
        """Set the generators to these states; the one of a GPU only if the device is a GPU."""
        torch.set_rng_state(self.cpu)
        state = self.numpy["state"]
        # Numpy sets its words one by one: from a list they take a quarter of the time.
        if "key" in state:
            state = {**state, "key": state["key"].tolist()}
        np.random.set_state({**self.numpy, "state": state})
        random.setstate(self.python)
        if self.gpu is not None and is_gpu(device):
            torch.get_device_module(device).set_rng_state(self.gpu, *_numbered(device))

    def is_same(self, other: Self) -> bool:
        """Return whether all generators have the same states."""
        if self.python != other.python:
            return False
        states = [self.cpu, self.gpu, *self.numpy["state"].values()]
        other_states = [other.cpu, other.gpu, *other.numpy["state"].values()]
        return all(map(np.array_equal, states, other_states))


def _unpickled_state(
    cpu: bytes, numpy: dict[str, Any], python: tuple[Any, ...], gpu: torch.Tensor | None
) -> RandomState:
    words_of_numpy = numpy["state"]
    if isinstance(words_of_numpy.get("key"), bytes):
        words_of_numpy["key"] = np.frombuffer(words_of_numpy["key"], np.uint32)
    version, words, gauss = python
    return RandomState(
        torch.frombuffer(bytearray(cpu), dtype=torch.uint8),
        numpy,
        python=(version, tuple(np.frombuffer(words, np.uint32).tolist()), gauss),
        gpu=gpu,
    )


def _is_state_of_numpy(state: dict[str, Any]) -> bool:
    """Return whether numpy's global generator is known to have this state still.

    That can be told from its memory if the generator is a Mersenne Twister, whose 624 words and
    position are its memory, and keeps no normal variate for the next draw.
    """
    generator = get_bit_generator()
    words = state["state"]
    if type(generator) is not np.random.MT19937 or "pos" not in words or state["has_gauss"]:
        return False
    memory = np.frombuffer(ctypes.string_at(generator.ctypes.state_address, 4 * 625), np.uint32)
    return bool(memory[-1] == words["pos"] and np.array_equal(memory[:-1], words["key"]))


def _numbered(device: str) -> tuple[str, ...]:
    """Return the arguments of functions of a device's module: the device, but nothing for MPS.

    MPS has a single device.
    """
    return () if device.startswith("mps") else (device,)


def seed_generators(seed: int, device: str) -> None:
    """Seed the generators of torch, numpy, Python and the device."""
    # torch.manual_seed would also seed the GPUs that other workers use.
    torch.default_generator.manual_seed(seed)
    if is_gpu(device):
        module = torch.get_device_module(device)
        with module.device(device) if _numbered(device) else nullcontext():
            module.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def set_random_state(start: RandomState | int, device: str) -> None:
    """Set the random state to ``start``, a state or a seed."""
    if isinstance(start, int):
        seed_generators(start, device)
    else:
        start.restore(device)


@contextmanager
def kept_random_state(device: str) -> Iterator[None]:
    """Restore the random state at the end of the block.

    Otherwise the serial engine would change the random numbers of the caller.
    """
    previous = RandomState.capture(device)
    try:
        yield
    finally:
        previous.restore(device)


@contextmanager
def random_state(start: RandomState | int, device: str) -> Iterator[None]:
    """Set the random state to ``start``, a state or a seed, and restore it after the block."""
    with kept_random_state(device):
        set_random_state(start, device)
        yield
