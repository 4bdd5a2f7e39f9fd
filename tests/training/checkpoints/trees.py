"""Trees of plain values, drawn by hypothesis, and when two of them are the same to the bit."""

import math

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
]
ARRAYS = [*"?bBhHiIlLefdF", ">f8", "<i4", ">u2"]

shapes = st.sampled_from([(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 4)])


def _bytes_of(shape: tuple[int, ...], itemsize: int, seed: int) -> np.ndarray:
    """All bit patterns are values, those of NaN among them."""
    return np.random.default_rng(seed).integers(0, 256, (math.prod(shape), itemsize), np.uint8)


@st.composite
def tensors(draw):
    shape = draw(shapes)
    dtype = draw(st.sampled_from(DTYPES))
    itemsize = torch.empty((), dtype=dtype).element_size()
    raw = torch.from_numpy(_bytes_of(shape, itemsize, draw(st.integers(0, 999))))
    tensor = (raw % 2).bool() if dtype == torch.bool else raw.reshape(-1).view(dtype)
    tensor = tensor.reshape(shape)
    form = draw(
        st.sampled_from(
            [
                "plain",
                "transposed",
                "part",
                "strided",
                "expanded",
                "shared",
                "parameter",
                "conjugate",
            ]
        )
    )
    if form == "transposed":
        return tensor.mT if tensor.dim() > 1 else tensor
    if form in ("part", "strided") and tensor.dim():
        return (
            torch.cat([tensor, tensor])[: len(tensor)]
            if form == "part"
            else torch.cat([tensor, tensor])[::2]
        )
    if form == "conjugate":
        return tensor.conj().imag if draw(st.booleans()) and dtype.is_complex else tensor.conj()
    if form == "expanded":
        return tensor.reshape(1, *shape).expand(3, *shape)
    if form == "shared":
        return tensor.clone().share_memory_()
    if form == "parameter" and dtype.is_floating_point:
        return torch.nn.Parameter(tensor)
    return tensor


@st.composite
def arrays(draw):
    shape = draw(shapes)
    dtype = np.dtype(draw(st.sampled_from(ARRAYS)))
    raw = _bytes_of(shape, dtype.itemsize, draw(st.integers(0, 999)))
    array = (raw % 2).astype(bool) if dtype.kind == "b" else raw.reshape(-1).view(dtype)
    array = array.reshape(shape)
    form = draw(st.sampled_from(["plain", "transposed", "strided", "read-only", "scalar"]))
    if form == "transposed":
        return array.T
    if form == "strided" and array.ndim:
        return np.concatenate([array, array])[::2]
    if form == "scalar" and array.size and dtype.isnative:
        return array.reshape(-1)[0]
    array.flags.writeable = form != "read-only"
    return array


TEXTS = ["", "$", "a", "b", "a/b", "a/b/a", "0", "1", "__metadata__", "name", "\ud800", "é\n"]
texts = st.one_of(st.sampled_from(TEXTS), st.text())
numbers = st.one_of(
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.sampled_from([-0.0, math.inf, math.nan, 1e-320]),
)
plain = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(
    texts,
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.tuples(st.integers(0, 2), texts),
    st.integers(0, 5).map(np.int64),
)
trees = st.recursive(
    st.one_of(plain, tensors(), arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


def assert_same(ours: object, theirs: object) -> None:
    """Values of the same types and bits, arrays without regard to how they lie in memory."""
    if isinstance(ours, torch.Tensor):
        assert isinstance(theirs, torch.Tensor)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert _raw(ours) == _raw(theirs)
    elif isinstance(ours, np.ndarray | np.generic):
        assert isinstance(theirs, np.ndarray) == isinstance(ours, np.ndarray)
        assert (ours.dtype.newbyteorder("="), ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.astype(theirs.dtype, copy=False).tobytes() == theirs.tobytes()
    elif isinstance(ours, list | tuple):
        assert type(theirs) is (tuple if isinstance(ours, tuple) else list)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, dict):
        assert isinstance(theirs, dict)
        assert_same(list(ours), list(theirs))
        assert_same(list(ours.values()), list(theirs.values()))
    else:
        assert type(ours) is type(theirs)
        assert repr(ours) == repr(theirs)  # tells NaN and -0.0, too


def _raw(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
