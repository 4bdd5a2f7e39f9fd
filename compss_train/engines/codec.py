"""Values as bytes and back, without copying the arrays in them.

Layout: the number of parts and each part's length as unsigned 64-bit integers, then the parts, each
at a multiple of 64 bytes. Part 0 is a pickle (protocol 5), the others are its out-of-band buffers:
numpy arrays and CPU tensors. Decoding yields arrays that are views of the bytes.

A ``numpy.memmap`` is encoded as the path of its file and its position in the file, without its
data. An object of a class with ``loaded_once`` is encoded as a separate pickle, which a process
decodes once: it keeps the last few of these objects, with the bytes behind their arrays, and passes
them to later tasks that receive the same content.
"""

import copyreg
import functools
import hashlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Self, TypeAlias

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.memory_order import memory_order
from compss_train._utils.private_names import capturing_hook, is_capturing_hook
from compss_train.data.block_bytes import flat_bytes
from compss_train.data.values import shared_tensor
from compss_train.exceptions import BadFileError

Bytes: TypeAlias = NDArray[np.uint8]
Buffer: TypeAlias = memoryview | bytes | bytearray

_PACKAGE = "compss_train."
_PYBIND11 = "pybind11_builtins"
"""The module of the type of classes that pybind11 has compiled."""

_ALIGNMENT = 64
_LENGTH = np.dtype("<u8")


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Keep the name of the file, which cloudpickle replaces and tracebacks show."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    # A copy: equal objects have equal pickles.
    return _rebuild_code, ("".join(list(code.co_filename)), make, args)


def _rebuild_code(filename: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return make(*args).replace(co_filename=filename)


def _refuse_file(file: io.TextIOWrapper) -> Any:
    """Refuse an open file, since cloudpickle would send all its text.

    Closed files and standard streams are pickled.
    """
    if not file.closed and file.readable() and isinstance(file.name, str) and file.fileno() > 2:
        raise pickle.PicklingError(f"{file.name} is an open file")
    return cloudpickle.Pickler.dispatch_table[io.TextIOWrapper](file)


def _reduce_cached_property(cached: functools.cached_property[Any]) -> tuple[Any, ...]:
    """Pickle its function, without the lock that it has up to Python 3.11."""
    return _rebuild_cached_property, (cached.func, cached.attrname)


def _rebuild_cached_property(
    function: Callable[[Any], Any], name: str | None
) -> functools.cached_property[Any]:
    rebuilt = functools.cached_property(function)
    rebuilt.attrname = name
    return rebuilt


def _reduce_cached_function(cached: Any) -> Any:
    """Pickle a function of ``__main__`` and its options, by which others are found.

    What it holds by variables around it, as a network, would be another one than in copies.
    """
    function = cached.__wrapped__
    is_main = isinstance(function, FunctionType) and function.__module__ == "__main__"
    if not is_main or function.__closure__ is not None:
        return cached.__reduce__()
    return _rebuild_cached_function, (function, cached.cache_parameters())


def _rebuild_cached_function(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return functools.lru_cache(**options)(function)


def _reduce_capturing_hook(hook: FunctionType) -> tuple[Any, ...]:
    """Pickle what is in its cells."""
    cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True)
    variables = {name: cell.cell_contents for name, cell in cells}
    plain = {name: value for name, value in variables.items() if not callable(value)}
    return functools.partial(capturing_hook, **plain), ()


def pickling_error(value: object) -> Exception | None:
    """Return what keeps a value from being pickled, if anything does."""
    try:
        _Pickler(io.BytesIO(), buffer_callback=lambda _: None).dump(value)
    except Exception as error:
        return error
    return None


_REDUCERS: dict[Any, Any] = {
    **cloudpickle.Pickler.dispatch_table.maps[0],
    CodeType: _reduce_code,
    io.TextIOWrapper: _refuse_file,
    functools.cached_property: _reduce_cached_property,
    type(functools.lru_cache(len)): _reduce_cached_function,
}
"""How objects of some types are pickled, besides what programs register with ``copyreg``."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle, which pickles functions of ``__main__``, with tensors out of band, too."""

    def __init__(self, stream: io.BytesIO, *, kept: object = None, **options: Any) -> None:
        # One dict: cloudpickle's ChainMap is searched in Python, for each object.
        self.dispatch_table = {**copyreg.dispatch_table, **_REDUCERS}
        super().__init__(stream, protocol=5, **options)
        self._kept = kept
        """The object of a class with ``loaded_once`` that this pickle is for."""

    def reducer_override(self, obj: Any) -> Any:
        ours = isinstance(obj, type | FunctionType) and (obj.__module__ or "").startswith(_PACKAGE)
        if ours and obj.__name__ == obj.__qualname__:
            # By name, without cloudpickle's search: half of the time of a small task.
            return NotImplemented
        if isinstance(obj, FunctionType) and is_capturing_hook(obj):
            return _reduce_capturing_hook(obj)
        if isinstance(obj, type) and type(obj).__module__ == _PYBIND11:
            return _reduce_compiled(obj)
        if getattr(type(obj), "loaded_once", False) and obj is not self._kept:
            return _load_once, (_SeparatePickle.of(obj),)
        if type(obj) is torch.Tensor and _is_plain(obj):
            return _reduce_tensor(obj)
        return _reduce_memmap(obj) if is_on_file(obj) else super().reducer_override(obj)


@dataclass(frozen=True)
class _SeparatePickle:
    """An object of a class with ``loaded_once``, pickled by itself."""

    digest: bytes
    """Digest of the content; equal objects have equal digests, so contents need not be compared."""
    data: pickle.PickleBuffer = field(compare=False)
    buffers: Sequence[pickle.PickleBuffer] = field(compare=False)

    @classmethod
    def of(cls, kept: object) -> "_SeparatePickle":
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, kept=kept, buffer_callback=buffers.append).dump(kept)
        # Bytes: of a stream in a reference cycle, a view crashes Python 3.11 (gh-77894) and warns
        # on 3.13.
        data = pickle.PickleBuffer(stream.getvalue())
        digest = hashlib.sha256()
        for part in (data, *buffers):
            digest.update(part.raw())
        return cls(digest.digest(), data, buffers)


@functools.lru_cache(maxsize=4)
def _load_once(pickled: _SeparatePickle) -> Any:
    return pickle.loads(pickled.data, buffers=pickled.buffers)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
    )


def is_on_file(array: object) -> bool:
    """Return whether the array is encoded as its file's path.

    It is if the file holds the array's present content.
    """
    if type(array) is not np.memmap:
        return False
    # In mode "c" changes stay in this process's memory and the file lacks them.
    return array.filename is not None and array.mode != "c" and bool(array.flags.c_contiguous)


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Keep the tensor's memory format (channels_last, for example): fused optimizers rely on it."""
    order = memory_order(tensor)
    dense = tensor.permute(order).contiguous()
    return _rebuild_tensor, (
        flat_bytes(dense).numpy(),
        tensor.dtype,
        tuple(dense.shape),
        tuple(order),
    )


def _rebuild_tensor(
    raw: Bytes, dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...]
) -> torch.Tensor:
    flat = shared_tensor(raw).view(dtype) if raw.size else torch.empty(0, dtype=dtype)
    return flat.view(shape).permute([order.index(dimension) for dimension in range(len(order))])


def _reduce_compiled(kind: type) -> Any:
    """Pickle a compiled class by the name that its module has for it.

    That may be another one than its own, as of ``torch.nn.attention.SDPBackend``.
    """
    module = sys.modules.get(kind.__module__)
    known = vars(module) if module is not None else {}
    names = [name for name, value in known.items() if value is kind]
    if not names or kind.__qualname__ in names:
        return NotImplemented
    return getattr, (module, names[0])


def _reduce_memmap(array: np.memmap[Any, Any]) -> tuple[Any, ...]:
    if array.mode != "r":
        array.flush()  # another process reads the file
    mapping = array
    while isinstance(mapping.base, np.memmap):
        mapping = mapping.base
    start = mapping.offset + _address(array) - _address(mapping)
    return _open_memmap, (os.path.abspath(str(array.filename)), start, array.dtype, array.shape)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _open_memmap(
    path: str, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    end = start + int(np.prod(shape)) * dtype.itemsize
    mapped = map_file(path)
    if len(mapped) < end:
        reason = (
            f"has been cut since it was memory-mapped: it has {len(mapped)} bytes, and "
            f"{end} are needed"
        )
        raise BadFileError(path, f"{reason}. Leave files that a fit reads as they are")
    return mapped[start:end].view(dtype).reshape(shape)


def map_file(path: str | os.PathLike[str]) -> Bytes:
    """Map a file copy-on-write: pages are shared with other processes until they are written to.

    Uses ``torch.from_file``, which, unlike ``mmap.mmap``, keeps no file descriptor open for each
    mapping. Raises ``FileNotFoundError`` for a file that was removed.
    """
    size = os.stat(path).st_size
    try:
        return torch.from_file(os.fspath(path), shared=False, size=size, dtype=torch.uint8).numpy()
    except RuntimeError as error:  # removed after stat
        raise FileNotFoundError(os.fspath(path)) from error


def dumps(value: object) -> tuple[memoryview, list[memoryview]]:
    """Return a pickle of the value and its out-of-band buffers, which share the value's memory."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, buffer_callback=buffers.append).dump(value)
    return memoryview(stream.getvalue()), [buffer.raw() for buffer in buffers]


def pickled(value: object) -> bytes:
    """Return a pickle of the value, with its arrays."""
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def encode(value: object) -> list[memoryview]:
    """Return chunks that, concatenated, encode the value; those of arrays share its memory."""
    data, buffers = dumps(value)
    parts = [data, *buffers]
    header = np.array([len(parts), *(part.nbytes for part in parts)], _LENGTH).tobytes()
    chunks = [memoryview(header)]
    end = len(header)
    for part in parts:
        chunks += [memoryview(bytes(-end % _ALIGNMENT)), part]
        end += -end % _ALIGNMENT + part.nbytes
    return chunks


def decode(data: Bytes) -> Any:
    """Return the encoded value; its arrays are views of ``data``."""
    count = int(data[: _LENGTH.itemsize].view(_LENGTH)[0])
    lengths = data[_LENGTH.itemsize : (count + 1) * _LENGTH.itemsize].view(_LENGTH).tolist()
    end = (count + 1) * _LENGTH.itemsize
    parts = []
    for length in lengths:
        start = end + -end % _ALIGNMENT
        end = start + length
        parts.append(data[start:end])
    return pickle.loads(parts[0].data, buffers=parts[1:])


class SerializedValue:
    """A value as a pickle and the buffers of its arrays, which PyCOMPSs and Ray store unchanged.

    Values are serialized inside tasks, where errors can be caught. This also works for classes and
    functions of the main script, which PyCOMPSs's own pickles cannot transfer to another process.
    Each instance is a separate object, since COMPSs distinguishes values by identity.
    """

    __slots__ = ("__weakref__", "buffers", "data")

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        self.data = data
        self.buffers = buffers

    @classmethod
    def of(cls, value: object) -> Self:
        """Serialize a value; the memory of its arrays is shared until they are written."""
        return cls(*dumps(value))

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(memoryview(buffer).nbytes for buffer in (self.data, *self.buffers))

    def load(self) -> Any:
        """Return the value; its arrays are views of the buffers."""
        return pickle.loads(self.data, buffers=self.buffers)

    def assign(self, other: "SerializedValue") -> None:
        """Take over the content of another instance: PyCOMPSs's tasks update objects in place."""
        self.data = other.data
        self.buffers = other.buffers

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        return SerializedValue, (pickle.PickleBuffer(self.data), buffers)
