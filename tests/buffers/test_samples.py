"""Samples of any structure are returned unchanged; samples that differ are rejected."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from compss_train.buffers import FIFO, storage
from compss_train.buffers.row_storage import RowStorage
from tests.buffers.kinds import ALL, PLAIN, make, sample

Point = namedtuple("Point", "x y")
Turned = namedtuple("Turned", "y x")


class Thing:
    pass


@pytest.fixture(autouse=True, params=["in columns", "in rows"])
def stored(request, monkeypatch):
    """Store samples as small ones are, and as large ones are."""
    if request.param == "in rows":
        monkeypatch.setattr(storage, "ColumnStorage", RowStorage)


def tensor(dtype, *shape):
    return (torch.arange(int(np.prod(shape)) + 3)[3:].reshape(shape) * 37 % 11).to(dtype)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
]
DTYPES += [torch.complex64, torch.complex128, torch.uint16, torch.uint64]
DENSE = {
    **{str(dtype).removeprefix("torch."): tensor(dtype, 2, 3) for dtype in DTYPES},
    "nan": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]),
    "0-d": torch.tensor(2.5),
    "0-d bool": torch.tensor(True),
    "empty": torch.empty(0),
    "empty 2-d": torch.empty(2, 0, dtype=torch.int64),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "array bool": np.array([True, False]),
    "array complex": np.array([1 + 2j], np.complex64),
    "array 0-d": np.array(2.5, np.float32),
    "array empty": np.empty((0, 2)),
    "tuple": (tensor(torch.float32, 3), tensor(torch.bool, 2, 2)),
    "dict": {"x": tensor(torch.float32, 3), "y": np.arange(2)},
    "nested": (
        {"a": (tensor(torch.int64, 1),), "b": (np.ones(2), {"c": torch.tensor(1)})},
        torch.ones(1),
    ),
    "namedtuple": Point(torch.ones(2), np.zeros(1)),
}


def check_same_structure(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for name in expected:
            check_same_structure(got[name], expected[name])
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for part, expected_part in zip(got, expected, strict=True):
            check_same_structure(part, expected_part)
    else:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert bits(got) == bits(expected)


def bits(value):
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def stacked(values):
    first = values[0]
    if isinstance(first, dict):
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        parts = [stacked(list(column)) for column in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return np.stack(values) if isinstance(first, np.ndarray) else torch.stack(values)


@pytest.mark.parametrize("name", DENSE)
def test_tensors_and_arrays_come_back_bit_for_bit(name):
    value = DENSE[name]
    fifo = FIFO(5)
    fifo.put(value)
    fifo.put_many([value, value])
    fifo.put_many(stacked([value, value]))
    check_same_structure(fifo.get(), value)
    check_same_structure(fifo.get_batch(4), stacked([value] * 4))


@pytest.mark.parametrize(
    "value",
    [
        *(Thing(), None, 3, "text", np.float32(2)),
        *([torch.ones(2)], (torch.ones(2), "cat"), (1, 2), (), {}),
        *(np.array(["a"]), np.array([None]), torch.eye(2).to_sparse()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_come_back_themselves(value):
    for kind in PLAIN:
        buffer = make(kind, 3, batch_size=1)
        buffer.put(value)
        (first,) = buffer.get_batch(1)
        buffer.signal_reception_over()
        if kind in ("Reservoir", "BatchReservoir"):
            (first,) = buffer.get_batch(1)
        assert first is value


BASE = torch.arange(24.0).reshape(4, 6)
CONJUGATE = torch.tensor([1 + 2j, 3 - 4j]).conj()


def read_only():
    array = np.arange(4.0)
    array.flags.writeable = False
    return array


LAYOUTS = {
    "transposed": (BASE.T, BASE.T.clone(memory_format=torch.contiguous_format)),
    "strided": (BASE[::2, 1::3], torch.tensor([[1.0, 4.0], [13.0, 16.0]])),
    "expanded": (torch.ones(1).expand(3), torch.ones(3)),
    "requires grad": (torch.ones(2, requires_grad=True), torch.ones(2)),
    "in a graph": (torch.ones(2, requires_grad=True) * 2, torch.full((2,), 2.0)),
    "parameter": (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    "conjugate": (CONJUGATE, torch.tensor([1 - 2j, 3 + 4j])),
    "negative": (CONJUGATE[:1].imag, torch.tensor([-2.0])),
    "one of a column": (BASE[:1, 2], torch.tensor([2.0])),
    "one of an array's column": (BASE.numpy()[:1, 2], np.array([2.0], np.float32)),
    "negative stride": (np.arange(6)[::-2], np.array([5, 3, 1])),
    "array transposed": (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
    "broadcast": (np.broadcast_to(np.float32(3), (2, 2)), np.full((2, 2), 3, np.float32)),
    "read-only": (read_only(), np.arange(4.0)),
}


@pytest.mark.parametrize(("value", "plain"), LAYOUTS.values(), ids=LAYOUTS)
def test_samples_of_any_layout_come_back_plain(value, plain):
    fifo = FIFO(6)
    fifo.put(value)
    fifo.put_many([value, value])
    fifo.put_many(value[None])
    fifo.put(plain)
    assert len(fifo) == 5
    for _ in range(5):
        got = fifo.get()
        check_same_structure(got, plain)
        assert not getattr(got, "requires_grad", False)
    assert got.flags.writeable if isinstance(got, np.ndarray) else got.is_contiguous()


@pytest.mark.parametrize("make_value", [torch.zeros, np.zeros])
def test_what_goes_in_and_out_shares_no_memory(make_value):
    for kind in ("Reservoir", "BatchReservoir"):
        buffer = make(kind, 4, batch_size=2)
        values = [make_value(3), make_value(3)]
        stack = make_value((2, 3))
        buffer.put(values[0])
        buffer.put_many(values[1:])
        buffer.put_many(stack)
        for value in (*values, stack):
            value[:] = 7
        for _ in range(20):
            for got in (buffer.get_batch(3), buffer.get()):
                assert not got.any()
                got[:] = 9


X = torch.tensor(1.0)
Y = torch.tensor(2.0)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (torch.ones(3), torch.ones(4)),
        (torch.ones(3), torch.ones(3, 1)),
        (torch.ones(1), torch.tensor(1.0)),
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3), torch.ones(3).numpy()),
        (torch.ones(3), (torch.ones(3),)),
        (torch.ones(3), "text"),
        ("text", torch.ones(3)),
        ((X, Y), (X, Y, Y)),
        ((X, Y), {"x": X, "y": Y}),
        ({"x": X, "y": Y}, {"x": X, "z": Y}),
        ({"x": X, "y": Y}, {"x": X}),
        (OrderedDict(x=X), OrderedDict(y=X)),
        (Point(X, Y), Turned(X, Y)),
        (Point(X, Y), (X, Y)),
    ],
    ids=["length", "dimensions", "0-d", "dtype", "array", "tuple", "object", "tensor", ("longer "
                                                                                       "tuple"),
         "dict for tuple", "other key", "missing key", "other ordered key", "other namedtuple",
         "tuple for namedtuple"],
)  # fmt: skip
def test_samples_unlike_the_first_are_refused_and_change_nothing(first, other):
    for kind in ALL:
        buffer = make(kind, 6)
        buffer.put(sample(buffer, 0, first))
        for call, data in (
            (buffer.put, sample(buffer, 1, other)),
            (buffer.put_many, samples_of(buffer, first, other)),
        ):
            with pytest.raises(
                ValueError, match=r"a sample of .* among samples of .*: a buffer stacks samples"
            ):
                call(data)
        assert (len(buffer), buffer.samples_put) == (1, 1)
        buffer.put_many(samples_of(buffer, first, first))
        assert len(buffer) == 3


@pytest.mark.parametrize(
    "other",
    [
        *(
            torch.ones(2, 4),
            torch.ones(2),
            torch.ones(2, 3, 1),
            torch.ones(2, 3).double(),
            torch.ones(2, 3).numpy(),
        ),
        *((torch.ones(2, 3),), torch.tensor(1.0), (torch.ones(2, 3), torch.ones(1, 3))),
    ],
)
def test_stacked_samples_unlike_the_first_are_refused(other):
    buffer = make("FIFO", 6)
    buffer.put_many(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"a buffer stacks samples|need the same first dimension"):
        buffer.put_many(other)
    buffer.put_many(torch.zeros(2, 6)[:, ::2])
    assert buffer.get_batch(4).sum(dim=1).tolist() == [3, 3, 0, 0]


def samples_of(buffer, *data):
    return [sample(buffer, number, value) for number, value in enumerate(data, 1)]


@pytest.mark.parametrize(
    ("stack", "error", "name"),
    [
        ("text", TypeError, "samples=str"),
        (np.array(["a"]), TypeError, "samples=ndarray"),
        ((torch.ones(2), 3), ValueError, "same first dimension in every part, not (2,), ()"),
        ((torch.ones(2), "a"), TypeError, "samples=tuple"),
        (torch.tensor(1.0), ValueError, "same first dimension in every part"),
        (
            (torch.ones(2), torch.ones(3)),
            ValueError,
            ("same first dimension in every part, not (2,), (3,)"),
        ),
    ],
)
def test_stacks_that_do_not_count_samples_are_refused(stack, error, name, raises):
    fifo = FIFO(4)
    with raises(error, name):
        fifo.put_many(stack)
    assert len(fifo) == 0
    fifo.put(1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
def test_samples_come_in_pinned_memory_and_from_a_gpu():
    fifo = FIFO(4, pin_memory=True)
    fifo.put_many([torch.tensor([1.0, 2.0], device="cuda"), torch.tensor([3.0, 4.0])])
    single = fifo.get()
    batch = fifo.get_batch(1)
    assert single.is_pinned()
    assert batch.is_pinned()
    assert (single.tolist(), batch.tolist()) == ([1.0, 2.0], [[3.0, 4.0]])
