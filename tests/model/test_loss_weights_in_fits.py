"""Weights in fits: they stay with their samples on every way to a model copy, and do what they
should there.
"""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BlockedTensor,
    BufferSpec,
    DistributedTrainer,
    FileDataset,
    Merge,
    PartialShuffle,
    SerialEngine,
    write_files,
)
from tests.helpers.callbacks import CopyingEngine, NoTasks
from tests.helpers.cases import each_value
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.plain_loop import plain_loop
from tests.helpers.tolerances import adam_error, loss_error

SAMPLES = 47
NUMBERS = np.arange(SAMPLES, dtype=np.float32)[:, None]
FIRO = BufferSpec("FIRO", 16, threshold=5)
WAYS = {
    "blocks": {},
    "blocks in order": {"shuffle": None, "shuffle_block_data": False},
    "total": {"shuffle": "total"},
    "partial": {"shuffle": PartialShuffle()},
    "two pools": {"shuffle": PartialShuffle(9, pools=2)},
    "queue": {"buffer": FIRO},
    "queue, total": {"buffer": FIRO, "shuffle": "total"},
    "reservoir": {"buffer": BufferSpec("Reservoir", 16)},
    "commutative": {"merge": Merge("commutative", unit="blocks")},
}


def step(model, batch, context):
    """A step that wants each sample's weight to be twice its number."""
    x = batch[0]
    target = batch[-1]
    if context.weight.numel() != len(target) or not torch.equal(
        context.weight.flatten(), 2 * target[:, 0]
    ):
        raise ValueError(f"{target[:, 0].tolist()} came with weights {context.weight.tolist()}")
    return model(x).mean() * 0


def check_conserved(engine, x, way, y=None, sample_weight=None):
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(nn.Linear(1, 1), SGD, training_step=step)
    trainer.fit(
        x, y, num_epochs=2, batch_size=5, sample_weight=sample_weight, progress=False, **WAYS[way]
    )
    assert sum(record["samples"] for record in trainer.history) == 2 * SAMPLES
    return trainer


@pytest.mark.parametrize(("way", "where"), each_value(list(WAYS), ["serial", "moving", "local"]))
def test_a_weight_stays_with_its_sample(shared_local, where, way):
    engine = {"serial": SerialEngine, "moving": CopyingEngine, "local": lambda: shared_local}[
        where
    ]()
    x, weight = blocked(NUMBERS, 2 * NUMBERS[:, 0].astype(np.float64), 7)
    check_conserved(
        engine,
        x,
        way,
        BlockedTensor.from_array(NUMBERS, (7, 1)) if where != "moving" else None,
        weight,
    )


@pytest.mark.parametrize(
    ("way", "form"), each_value([way for way in WAYS if "total" not in way], ["npz", "npy files"])
)
def test_a_weight_stays_with_its_sample_in_files(tmp_path, way, form):
    arrays = {"x": NUMBERS, **({"y": NUMBERS} if form == "npz" else {})}
    if form == "npz":
        write_files(tmp_path, {**arrays, "importance": 2 * NUMBERS}, rows=7)
        x = FileDataset(tmp_path / "*.npz", y="y" if "y" in arrays else None, weight="importance")
        check_conserved("serial", x, way)
        return
    for name, array in {**arrays, "w": 2 * NUMBERS}.items():
        for number, block in enumerate(np.array_split(array, 7)):
            np.save(tmp_path / f"{name}{number}.npy", block)
    x, y, weight = (
        BlockedTensor.from_files(tmp_path / f"{name}*.npy") if name in (*arrays, "w") else None
        for name in "xyw"
    )
    check_conserved("serial", x, way, y, weight)


X, Y = classification(samples=SAMPLES)
WEIGHT = np.random.default_rng(1).uniform(0, 2, SAMPLES).astype(np.float32)


def test_class_weights_equal_those_of_torch_in_a_plain_loop(engine):
    weights = [0.5, 1.0, 4.0]
    trainer = DistributedTrainer(1, engine=engine, seed=3, threads=1)
    net = awkward_net().double()
    x = X.astype(np.float64)
    trainer.build(net, ADAM, "cross_entropy", class_weight=weights)
    options = {
        "num_epochs": 3,
        "num_batches_per_worker": 3,
        "progress": False,
        **WAYS[("blocks in order")],
    }
    ours = trainer.fit(*blocked(x, Y, 4), **options)
    loss = nn.CrossEntropyLoss(torch.tensor(weights, dtype=torch.float64))
    plain = plain_loop(
        net, lambda p: torch.optim.Adam(p, lr=0.01), x, Y, 4, 3, 3, seed=3, loss=loss
    )
    assert_close(ours, plain, adam_error(np.float64, 36, 0.01, samples=4))


def test_losses_of_batches_have_weights_and_evaluation_has_none():
    net = mlp()
    classes = [0.5, 1.0, 4.0]
    still = {"optimizer": "sgd", "lr": 0.0}
    trainer = DistributedTrainer(1, engine="serial", seed=0)
    trainer.build(net, still, "cross_entropy", class_weight=classes)
    options = {"validation_data": (X, Y), "progress": False, **WAYS["blocks in order"]}
    trainer.fit(X, Y, num_epochs=1, batch_size=20, sample_weight=WEIGHT, **options)
    total = 0.0
    total_weight = 0.0
    logits = net(torch.from_numpy(X))
    y = torch.from_numpy(Y)
    for batch in np.array_split(np.arange(SAMPLES), 3):
        weights = torch.from_numpy(WEIGHT[batch]) * torch.tensor(classes)[y[batch]]
        losses = nn.functional.cross_entropy(logits[batch], y[batch], reduction="none")
        total += (losses * weights).sum().item()
        total_weight += weights.sum().item()
    rounding = loss_error(np.float32, SAMPLES)
    assert trainer.history[0]["loss"] == pytest.approx(total / total_weight, abs=rounding)
    plain = nn.functional.cross_entropy(logits, y).item()
    assert trainer.history[0]["val_loss"] == pytest.approx(plain, abs=rounding)
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(plain, abs=rounding)


@pytest.mark.parametrize(
    ("weight", "error", "name"),
    [
        (np.ones(5), ValueError, "sample_weight has 5 rows for 47 samples"),
        (np.ones((SAMPLES, 2)), ValueError, "sample_weight has the shape (2,) for each sample"),
        (-WEIGHT, ValueError, "numbers in block 0"),
        (
            np.where(np.arange(SAMPLES) == 40, np.nan, 1),
            ValueError,
            "sample_weight has negative, NaN",
        ),
        (WEIGHT + 1j, ValueError, "sample_weight has negative, NaN"),
        (3.0, ValueError, "a scalar"),
        (["a"] * SAMPLES, TypeError, "torch cannot hold dtype <U1"),
        (
            BlockedTensor.from_array(WEIGHT, (6, 1)),
            ValueError,
            "(7, 1) blocks and sample_weight one of",
        ),
        (
            BlockedTensor([[WEIGHT[i : i + 7]] for i in range(0, 47, 7)]),
            ValueError,
            "block 5 has 6 samples in x and 7 in sample_weight",
        ),
    ],
)
def test_invalid_weights_are_found_before_any_task(weight, error, name, raises):
    trainer = DistributedTrainer(2, engine=NoTasks(), seed=0, threads=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    with raises(error, name):
        trainer.fit(*blocked(X, Y, 7), num_epochs=1, batch_size=5, sample_weight=weight)


def test_wrong_weights_in_files_are_found_before_any_task(tmp_path):
    write_files(tmp_path, {"x": X, "y": Y}, rows=20)
    trainer = DistributedTrainer(2, engine=NoTasks(), seed=0, threads=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    options = {"num_epochs": 1, "batch_size": 5}
    with pytest.raises(ValueError, match="has no array 'w' for weight, it has 'x', 'y'"):
        trainer.fit(FileDataset(tmp_path / "*.npz", weight="w"), **options)
    with pytest.raises(
        ValueError,
        match=r"'x' in .* has the shape \(6,\) for each sample; give one number per sample",
    ):
        trainer.fit(FileDataset(tmp_path / "*.npz", weight="x"), **options)
    with pytest.raises(
        TypeError, match=r"leave sample_weight out, and name the array in FileDataset\(..., weight="
    ):
        trainer.fit(FileDataset(tmp_path / "*.npz"), sample_weight=WEIGHT, **options)


def test_weights_of_evaluated_files_are_told_not_to_count(tmp_path):
    write_files(tmp_path, {"x": X, "y": Y, "w": np.arange(len(X), dtype=np.float32)}, rows=20)
    files = FileDataset(tmp_path / "*.npz", weight="w")
    with DistributedTrainer(2, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        with pytest.warns(UserWarning, match="evaluation is not weighted: the weights 'w'"):
            trainer.fit(files, num_epochs=1, batch_size=5, validation_data=files, progress=False)
        measured = trainer.evaluate(FileDataset(tmp_path / "*.npz"))
        assert trainer.history[-1]["val_loss"] == pytest.approx(measured["loss"])
