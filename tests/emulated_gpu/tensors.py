"""Tensors of emulated CUDA devices: wrappers of CPU tensors that refuse what a real device
refuses.
"""

import os
import threading
from collections import Counter
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_iter, tree_map

aten = torch.ops.aten
counts: Counter[str] = Counter()
"""``to_device``, ``to_host``: copies, and ``waits``: reads that wait for the device, since
``counts.clear()``.
"""

MAY_MIX = {
    "copy_",
    "_to_copy",
    "index",
    "index_put_",
    "index_put",
    "_index_put_impl_",
    "_unsafe_index",
}
"""Operations that take tensors of a device and of the CPU."""
WAIT = {
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "allclose",
}
"""Operations whose result, or its shape, the CPU has to wait for."""


class Memory:
    """Counts the bytes of each device, and refuses more than the variable
    ``EMULATED_GPU_BYTES``.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: Counter[tuple[int, int]] = Counter()
        self.allocated: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()

    def use(self, number: int, address: int, size: int) -> None:
        """Count memory of a device, unless another tensor uses it already."""
        with self._lock:
            self._users[number, address] += 1
            if self._users[number, address] == 1:
                self.allocated[number] += size
                self.peak[number] = max(self.peak[number], self.allocated[number])

    def release(self, number: int, address: int, size: int) -> None:
        """Count the memory as free when its last tensor is gone."""
        with self._lock:
            self._users[number, address] -= 1
            if not self._users[number, address]:
                del self._users[number, address]
                self.allocated[number] -= size


class Use:
    """The use of memory by a tensor: an attribute of it, as ``swap_tensors`` refuses weak
    references to tensors.
    """

    def __init__(self, number: int, storage: torch.UntypedStorage) -> None:
        self._memory = memory
        self._used = (number, storage.data_ptr(), storage.nbytes())
        memory.use(*self._used)
        limit = int(os.environ.get("EMULATED_GPU_BYTES", 2**62))
        if memory.allocated[number] > limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {storage.nbytes()} bytes of {limit}")

    def __del__(self) -> None:
        self._memory.release(*self._used)


memory = Memory()


class EmulatedTensor(torch.Tensor):
    """A tensor of an emulated device, with the CPU tensor ``inner`` that holds its values."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> "EmulatedTensor":
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        wrapper.inner = inner
        wrapper.use = Use(device.index, inner.untyped_storage())
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on {self.device}"

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RuntimeError(
            f"a tensor of {self.device} was pickled: another process may not have this device"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copy = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copy = memo[id(self)] = torch.nn.Parameter(copy.detach(), self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation of a device on the CPU tensors behind its arguments, and wrap its
    results.
    """
    name = func.overloadpacket.__name__
    given = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
    devices = {each.device for each in given if isinstance(each, EmulatedTensor)}
    target = kwargs.get("device")
    if target is not None:
        target = with_index(torch.device(target))
    if name not in MAY_MIX:
        strangers = {
            each.device for each in given if not isinstance(each, EmulatedTensor) and each.dim()
        }
        if len(devices | strangers) > 1:
            first, second = sorted(map(str, devices | strangers), reverse=True)[:2]
            raise RuntimeError(
                f"Expected all tensors to be on the same device, not on {first} and {second} (in "
                f"aten::{name})"
            )
    count(name, args, kwargs, target)
    if name == "record_stream":
        return None
    device = (
        target
        or (args[0].device if name == "copy_" else next(iter(devices), None))
        or with_index("cuda")
    )
    wrappers = {id(each.inner): each for each in given if isinstance(each, EmulatedTensor)}
    inner_args, inner_kwargs = tree_map(lambda each: unwrapped(each), (args, kwargs))
    if target is not None:
        inner_kwargs["device"] = torch.device("cpu")
        inner_kwargs.pop("pin_memory", None)
    if torch.Tag.nondeterministic_seeded in func.tags and device.type == "cuda":
        result = with_generator(func, inner_args, inner_kwargs, device)
    else:
        result = func(*inner_args, **inner_kwargs)

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or device.type != "cuda":
            return value
        known = wrappers.get(id(value))
        if known is None:
            return EmulatedTensor(value, device)
        if known.shape != value.shape:
            raise NotImplementedError(f"aten::{name} changed the shape of its argument in place")
        return known

    if name == "_to_copy" and device.type == "cpu" and wrappers and id(result) in wrappers:
        result = result.clone()
    return tree_map(wrapped, result)


def unwrapped(value: Any) -> Any:
    """Return the CPU tensor behind a tensor of a device; anything else as it is."""
    return value.inner if isinstance(value, EmulatedTensor) else value


def with_index(device: Any) -> torch.device:
    """Return the device with its number, by default the current one's."""
    device = torch.device(device)
    if device.type != "cuda":
        return device
    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return torch.device("cuda", number)


def count(name: str, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> None:
    """Count copies, and operations that wait for the device."""
    if name in ("copy_", "_to_copy"):
        source = args[1] if name == "copy_" else args[0]
        to = args[0].device if name == "copy_" else target or source.device
        if source.device.type != to.type:
            counts["to_device" if to.type == "cuda" else "to_host"] += 1
            if not kwargs.get("non_blocking", args[2] if len(args) > 2 else False):
                counts["waits"] += 1
    elif name in WAIT:
        counts["waits"] += 1


def with_generator(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Run an operation with the random numbers of the device's generator, or of the given one."""
    generator = kwargs.pop("generator", None)
    if generator is None:
        args, generator = without_generator(args)
    if generator is None:
        generator = torch.cuda.default_generators[device.index]
    if generator.device.type != "cuda":
        raise RuntimeError(
            f"Expected a 'cuda' device type for generator but found '{generator.device.type}'"
        )
    cpu = torch.default_generator
    saved = cpu.get_state()
    cpu.set_state(generator.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        generator.set_state(cpu.get_state())
        cpu.set_state(saved)


def without_generator(args: Any) -> tuple[Any, torch.Generator | None]:
    """Return positional arguments with ``None`` in place of a generator, and that generator."""
    found = [each for each in args if isinstance(each, torch.Generator)]
    return [None if isinstance(each, torch.Generator) else each for each in args], next(
        iter(found), None
    )
