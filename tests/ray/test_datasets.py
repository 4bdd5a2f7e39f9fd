"""Data sets of Ray: their blocks are trained on where they are, with the bits of arrays."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray.data
import torch
from torch import nn

from compss_train import BlockedTensor, Ragged, Samples
from compss_train.callbacks import Checkpoint
from compss_train.engines.ray.datasets import RayBlock
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import assert_same_bits, mlp
from tests.helpers.small_fits import X, Y, assert_alike, fit, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")

SIZES = (9, 20, 1, 27)
BOUNDS = [*zip(np.cumsum((0, *SIZES)), np.cumsum(SIZES), strict=False)]
NAMES = [f"column {number}" for number in range(X.shape[1])]


@pytest.fixture(autouse=True)
def quiet():
    context = ray.data.DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    yield
    context.enable_progress_bars = before


def in_blocks(array):
    return BlockedTensor([[array[start:stop]] for start, stop in BOUNDS])


def frames(x=X, y=Y):
    """A block of each size, and one without rows."""
    frame = pd.DataFrame(x, columns=NAMES).assign(label=y)
    blocks = [frame[start:stop] for start, stop in BOUNDS]
    return ray.data.from_arrow(
        [pa.Table.from_pandas(block, preserve_index=False) for block in [*blocks, frame[:0]]]
    )


def tensors():
    return ray.data.from_blocks(
        [pd.DataFrame({"x": [*X[start:stop]], "y": Y[start:stop]}) for start, stop in BOUNDS]
    )


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(X.shape[1] + 1, 3)

    def forward(self, x, age):
        return self.head(torch.cat([x, age[:, None]], dim=1))


class MeanOfSequence(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(1, 3)

    def forward(self, x):
        return self.head(x.mean(dim=1, keepdim=True))


AGES = np.arange(len(X), dtype=np.float32)
SEQUENCES = [AGES[: 1 + number % 5] for number in range(len(X))]


def two_inputs():
    return tensors().map_batches(
        lambda block: {
            **block,
            "age": np.float32([AGES[(row == X).all(axis=1)][0] for row in block["x"]]),
        },
        batch_size=None,
    )


def sequences():
    """Arrays in the first blocks, lists of one length in the block of one row."""
    return ray.data.from_blocks(
        [pd.DataFrame({"x": SEQUENCES[start:stop], "y": Y[start:stop]}) for start, stop in BOUNDS]
    )


KINDS = {
    "columns": (mlp, frames, lambda: (in_blocks(X), in_blocks(Y)), {}),
    "tensors": (mlp, tensors, lambda: (in_blocks(X), in_blocks(Y)), {"shuffle": "total"}),
    "two inputs": (
        TwoInputs,
        lambda: Samples(two_inputs(), x=["x", "age"], y="y"),
        lambda: ({"x": in_blocks(X), "age": in_blocks(AGES)}, in_blocks(Y)),
        {},
    ),
    "sequences": (
        MeanOfSequence,
        sequences,
        lambda: (in_blocks(Ragged(SEQUENCES)), in_blocks(Y)),
        {"bucket_by_length": True},
    ),
    "weights": (
        mlp,
        frames,
        lambda: (in_blocks(X), in_blocks(Y)),
        {"sample_weight": np.linspace(0, 1, len(X))},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fits_have_the_bits_of_the_same_blocks_of_arrays(kind, shared_ray, monkeypatch):
    net, dataset, arrays, options = KINDS[kind]
    data = arrays()
    serial = trainer_of(net=net)
    fit(serial, data=data, **options)

    def load(self):
        raise AssertionError("the coordinator has loaded a block")

    monkeypatch.setattr(RayBlock, "load", load)
    trainer = trainer_of(shared_ray, net=net)
    samples = dataset()
    fit(trainer, data=(samples,), **options)
    assert_same_bits(trainer.get_parameters(), serial.get_parameters())
    assert trainer.evaluate(samples) == pytest.approx(serial.evaluate(*data))
    np.testing.assert_allclose(trainer.predict(samples), serial.predict(data[0]), rtol=1e-5)


def test_a_fit_resumes_with_the_same_blocks_and_says_how_to_get_them(shared_ray, tmp_path):
    whole = trainer_of(shared_ray, net=mlp)
    fit(whole, data=(frames(),))
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(shared_ray, net=mlp), Checkpoint(tmp_path), InterruptAt(1), data=(frames(),))
    with pytest.raises(ValueError, match=r"dataset\.repartition\(4\) before both fits"):
        fit(trainer_of(shared_ray, net=mlp), data=(frames().repartition(3),), resume=tmp_path)
    with pytest.warns(UserWarning, match="its data had other values"):
        fit(trainer_of(shared_ray, net=mlp), data=(frames(X + 1),), resume=tmp_path)
    resumed = trainer_of(shared_ray, net=mlp)
    fit(resumed, data=(frames(),), resume=tmp_path)
    assert_alike(resumed, whole)


def test_floats_become_the_dtype_of_the_network_and_small_blocks_are_named(shared_ray, capsys):
    trainer = trainer_of(shared_ray, net=mlp)
    with pytest.warns(UserWarning, match="float64 becomes float32"):
        fit(trainer, data=(frames(X.astype(np.float64)),), batch_size=50, progress=True)
    assert "; dataset.repartition(3) makes larger ones" in capsys.readouterr().err
    whole = trainer_of(net=mlp)
    fit(whole, data=(in_blocks(X), in_blocks(Y)), batch_size=50)
    assert_same_bits(trainer.get_parameters(), whole.get_parameters())


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"x": ["a"], "y": [1]}, "string in 'x'"),
        ({"x": [1.0, None], "y": [1, 2]}, "row 1"),
        ({"x": [[[1.0]], [[1.0, 2.0]]], "y": [1, 2]}, "within those of 'x'"),
        ({"x": [np.zeros((2, 2)), np.zeros((3, 2))], "y": [1, 2]}, "several shapes in 'x'"),
        ({"x": [2**63], "y": [1]}, "block 0"),
    ],
)
def test_columns_that_hold_no_numbers_are_errors(columns, name, shared_ray, raises):
    data = ray.data.from_blocks([pd.DataFrame(columns)])
    with raises(ValueError, name):
        fit(trainer_of(shared_ray, net=mlp), data=(data,))


def test_blocks_that_differ_and_data_without_rows_are_errors(shared_ray, raises):
    tables = [pa.table({"x": [[1.0, 2.0]], "y": [1]}), pa.table({"x": [[1, 2]], "y": [1]})]
    with raises(ValueError, "in column 'x' of block 1"):
        fit(trainer_of(shared_ray, net=mlp), data=(ray.data.from_arrow(tables),))
    with raises(ValueError, "no rows"):
        fit(trainer_of(shared_ray, net=mlp), data=(ray.data.from_arrow(tables[0].slice(0, 0)),))


@pytest.mark.usefixtures("shared_ray")
def test_other_engines_and_options_of_other_data_sets_are_errors(raises):
    with raises(TypeError, "write_parquet('folder') and FileDataset('folder/*.parquet'"):
        fit(trainer_of(), data=(frames(),))
    with raises(ValueError, "dataset.repartition(3)"):
        Samples(frames(), blocks=3)
    with raises(ValueError, "build(collate=)"):
        Samples(frames(), collate=list)
