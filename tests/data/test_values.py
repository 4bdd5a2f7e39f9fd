"""What no tensor can hold is refused, by name, in every way in."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from compss_train import (
    BlockedTensor,
    DistributedTrainer,
    FileDataset,
    PartialShuffleSampler,
    Ragged,
    write_files,
)
from compss_train.data.sample_reading import batch_of
from compss_train.data.sample_roles import Roles
from compss_train.data.samples import Samples
from compss_train.data.values import signed
from compss_train.online.stream import as_sample

sparse = pytest.importorskip("scipy.sparse")

WRONG = {
    "masked": (
        lambda: np.ma.array(np.ones((8, 2), "f4"), mask=[[True, False]] * 8),
        ("is a masked array"),
    ),
    "sparse": (
        lambda: sparse.csr_array(np.ones((8, 2), "f4")),
        ("is a (csr|coo)_array, which is sparse"),
    ),
    "sparse matrix": (
        lambda: sparse.csr_matrix(np.ones((8, 2), "f4")),
        ("is a csr_matrix, which is sparse"),
    ),
    "sparse tensor": (
        lambda: torch.ones(8, 2).to_sparse(),
        ("is a tensor of torch.float32, torch.sparse_coo"),
    ),
    "objects": (lambda: np.array([[1, 2]] * 8, object), "(?s)object.*numbers?"),
    "structured": (lambda: np.ones(8, [("a", "f4"), ("b", "f4")]), r"\('a', '<f4'\)"),
    "text": (lambda: np.array([["1", "2"]] * 8), "<U1"),
    "times": (lambda: np.zeros((8, 2), "M8[s]"), r"datetime64\[s\]"),
    "wide floats": (lambda: np.ones((8, 2), np.longdouble), "float128"),
    "bytes in another order": (lambda: np.ones((8, 2), ">f4"), ">f4"),
    "large integers": (lambda: np.full((8, 2), 2**63 + 5, np.uint64), "9223372036854775813"),
}
Y = np.ones(8, np.float32)
GOOD = np.ones((8, 2), np.float32)


class Items(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return self.x[number], np.float32(1)


def trainer():
    made = DistributedTrainer(num_workers=1, engine="serial", seed=0)
    made.build(nn.Linear(2, 1), {"optimizer": "sgd", "lr": 0.1}, "mse")
    return made


def fit(*data, **options):
    trainer().fit(*data, num_epochs=1, batch_size=4, progress=False, **options)


def from_reader(x, tmp_path):
    file = tmp_path / "f"
    file.write_text("read by the function")
    fit(FileDataset([file], lambda name, get_data=False: ({"x": x, "y": Y}, 8) if get_data else 8))


WAYS = {
    "x": lambda x, _: fit(x, Y),
    "y": lambda x, _: fit(GOOD, x),
    "weights": lambda x, _: fit(GOOD, Y, sample_weight=x),
    "one of several inputs": lambda x, _: fit((GOOD, x), Y),
    "a list": lambda x, _: fit(list(x), Y),
    "validation": lambda x, _: fit(GOOD, Y, validation_data=(x, Y)),
    "predict": lambda x, _: trainer().predict(x),
    "evaluate": lambda x, _: trainer().evaluate(x, Y),
    "a data set": lambda x, _: fit(Items(x)),
    "samples": lambda x, _: fit(Samples(Items(x), x=0, y=1)),
    "sequences": lambda x, _: Ragged(list(x)),
    "blocks": lambda x, _: BlockedTensor.from_array(x, blocks=(2, 1)),
    "a reader": from_reader,
    "files that are written": lambda x, tmp_path: write_files(
        tmp_path / "out", {"x": x, "y": Y}, rows=4
    ),
    "a sender": lambda x, _: as_sample((x[0], Y[0])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_no_tensor_can_hold_is_refused_in_every_way_in(kind, way, tmp_path):
    make, message = WRONG[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        WAYS[way](make(), tmp_path)


ITERATORS = {
    "generator": lambda: (row for row in GOOD),
    "map": lambda: map(list, GOOD),
    "iterator": lambda: iter(GOOD),
}


@pytest.mark.parametrize("way", ["x", "y", "predict", "blocks", "files that are written"])
@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_is_named(kind, way, tmp_path):
    with pytest.raises(
        TypeError, match=(f"is a \\w*{kind}, which can be read only once; give a list or an array")
    ):
        WAYS[way](ITERATORS[kind](), tmp_path)


SEQUENCES = [torch.ones(length, 2) for length in (3, 2, 2, 1, 1, 1, 1, 1)]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_are_named_with_what_takes_them(is_sorted):
    packed = nn.utils.rnn.pack_sequence(SEQUENCES, enforce_sorted=is_sorted)
    advice = r"is a PackedSequence, .* Ragged\(torch.nn.utils.rnn.unpack_sequence\(packed\)\)"
    for x in (packed, [packed], {"x": packed}, (packed, GOOD)):
        with pytest.raises(TypeError, match=advice):
            fit(x, Y)
    with pytest.raises(TypeError, match=advice):
        trainer().predict(packed)
    unpacked = Ragged(nn.utils.rnn.unpack_sequence(packed))
    assert all(map(torch.equal, unpacked, SEQUENCES))


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
@pytest.mark.parametrize(
    ("dtype", "wider"), [("u1", "u1"), ("u2", "i4"), ("u4", "i8"), ("u8", "i8"), ("f4", "f4")]
)
def test_unsigned_integers_keep_their_values(make, dtype, wider):
    largest = 2**63 - 1 if dtype == "u8" else np.array(-1).astype(dtype)
    values = np.array([0, 1, largest], dtype)
    made = signed(make(values))
    assert np.asarray(made).dtype == np.dtype(wider)
    assert np.asarray(made).tolist() == values.tolist()


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_integers_that_no_tensor_holds_are_refused_in_data_sets_and_sequences(value):
    for give in (lambda: fit(Items([[value, 1]] * 8)), lambda: Ragged([[value], [1, 2]])):
        with pytest.raises(
            ValueError, match=r"no tensor can hold this list: .*integers below 2\*\*63"
        ):
            give()


def test_arrays_with_no_masked_value_are_arrays():
    whole = np.ma.array(np.ones((8, 2), "f4"), mask=False)
    fit(whole, Y)
    assert len(Ragged([whole, whole[:2]])) == 2


@pytest.mark.parametrize(
    "values", [[2**63, 1], [2**63, -1], [1.5, 2**64 + 1], [[-(2**63) - 1, 2.0]]]
)
def test_integers_in_lists_are_not_rounded_without_a_word(values):
    with pytest.raises(
        (TypeError, ValueError), match=r"the largest integer of a tensor is 2\*\*63 - 1|object"
    ):
        BlockedTensor.from_array(values, 1)
    assert BlockedTensor.from_array([2.0**63, 1], 1).tensors[0][0].tolist() == [2.0**63, 1.0]


NO_TARGET = "some samples of a batch have a target and others none"
OTHER_PARTS = "samples of a batch have different parts"
UNLIKE = {
    "none": (NO_TARGET, [(1, 2), (1, None), (1, 2)]),
    "no part": (NO_TARGET, [{"x": 1}, {"x": 1, "y": 2}]),
    "other name": (OTHER_PARTS, [{"a": 1, "b": 2, "y": 0}, {"a": 1, "c": 2, "y": 0}]),
    "further part": (OTHER_PARTS, [{"a": 1, "b": 2, "y": 0}, {"a": 1, "b": 2, "c": 3, "y": 0}]),
}


@pytest.mark.parametrize(("message", "samples"), UNLIKE.values(), ids=UNLIKE)
def test_no_part_of_a_sample_is_left_out_without_a_word(message, samples):
    for ordered in (samples, samples[::-1]):
        with pytest.raises(ValueError, match=message):
            batch_of(ordered, Roles(), None, collate=None)
    if message == NO_TARGET:
        with pytest.raises(ValueError, match=message):
            batch_of(samples, Roles(), None, collate=list)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_files_of_unsigned_integers_are_sampled_as_signed_ones(tmp_path, dtype):
    x = np.array([0, 2**16 - 1, 3], dtype)
    np.savez(tmp_path / "f.npz", x=x)
    sampler = PartialShuffleSampler(FileDataset(tmp_path / "f.npz"), batch_size=3)
    (batch,) = sampler
    assert sorted(batch["x"].tolist()) == sorted(x.tolist())


def test_numbers_that_a_format_cannot_hold_are_named(tmp_path):
    values = torch.complex(torch.ones(3), torch.ones(3)).conj()
    (path,) = write_files(tmp_path / "c", {"x": values}, rows=3)
    assert np.load(path)["x"].tolist() == [1 - 1j] * 3
    for format in ("npz", "npy", "h5"):
        with pytest.raises(
            ValueError, match=r"'x' holds torch\.bfloat16, which only the format pt can hold"
        ):
            write_files(
                tmp_path / format, {"x": torch.ones(3, dtype=torch.bfloat16)}, rows=3, format=format
            )
