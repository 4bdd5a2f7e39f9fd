"""What users are told of their data, classes, metrics, rates and results."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Unfreeze
from tests.helpers.models import SGD, assert_same_bits, classification, mlp

X, Y = classification()
FIT = {"num_epochs": 2, "batch_size": 20, "progress": False}


def trainer_of(net=None, optimizer=SGD, **options):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(net or mlp(), optimizer, "cross_entropy", **options)
    return trainer


def test_all_problems_of_frames_are_in_one_error(raises):
    frame = pd.DataFrame(X, columns=[*"abcdef"])
    frame.loc[3, "b"] = np.nan
    frame["c"] = ["oak", "elm"] * (len(frame) // 2)
    frame["d"] = pd.date_range("2020-01-01", periods=len(frame))
    target = pd.Series(["yes", "no"] * (len(frame) // 2), name="answer")
    with raises(ValueError, "has 3 columns that are not ready"):
        trainer_of().fit(frame, target, **FIT)
    texts = pd.DataFrame({f"c{number}": ["a", "b"] for number in range(14)})
    with pytest.raises(ValueError, match="and so on, in 4 more columns"):
        trainer_of().fit(texts, np.zeros(2, np.int64), **FIT)
    lacking = pd.DataFrame(X, columns=[*"abcdef"])
    lacking.loc[2] = np.nan
    with pytest.raises(ValueError, match=r"'a', the first in row 2: .*fillna\(0\)") as caught:
        trainer_of().fit(lacking, Y, **FIT)
    assert "'f'" in str(caught.value)


def test_classes_are_weighted_by_their_names(raises):
    names = np.array(["ash", "elm", "oak"])[Y]
    target = pd.Series(pd.Categorical(names), name="tree")
    by_index = trainer_of(class_weight=[1, 3, 2])
    by_index.fit(X, Y, **FIT)
    by_name = {"oak": 2, "ash": 1, "elm": 3}
    for y in (target, target.to_frame()["tree"]):
        trainer = trainer_of(class_weight=by_name)
        trainer.fit(X, y, **FIT)
        assert_same_bits(trainer.get_parameters(), by_index.get_parameters())
    with raises(ValueError, "is by names of classes, and y has none"):
        trainer_of(class_weight=by_name).fit(X, Y, **FIT)
    with raises(ValueError, "the classes of y are ash, elm, oak"):
        trainer_of(class_weight={"oak": 2, "ash": 1}).fit(X, target, **FIT)
    with raises(ValueError, "give a finite number"):
        trainer_of(class_weight={"oak": -2, "ash": 1})


def test_groups_of_frozen_parameters_are_for_unfreeze(raises):
    net = mlp()
    net[0].requires_grad_(False)
    with raises(ValueError, "Unfreeze('0', epoch=..., factor=0.1)"):
        trainer_of(net, {**SGD, "groups": {"0": {"lr": 0.01}}})


@pytest.mark.parametrize("schedule", [None, lambda epoch: 0.5**epoch])
def test_rates_of_unfrozen_groups_are_in_the_history(schedule):
    net = mlp()
    net[0].requires_grad_(False)
    trainer = trainer_of(net, schedule=schedule)
    options = {**FIT, "num_epochs": 4}
    trainer.fit(X, Y, **options, callbacks=[Unfreeze("0", epoch=2, factor=0.1)])
    for epoch, record in enumerate(trainer.history):
        rate = 0.05 if schedule is None else 0.05 * 0.5**epoch
        if epoch < 2:
            assert "lr/0" not in record
            continue
        assert record["lr"] == pytest.approx(rate)
        assert record["lr/0"] == pytest.approx(rate / 10)


def test_soft_labels_in_a_metric_of_the_user_are_told():
    def mixup(x, y):
        soft = nn.functional.one_hot(y, 3).float()
        return x, 0.9 * soft + 0.1 * soft.flip(0)

    def agreement(output, target):
        return (output.argmax(dim=1) == target).float().mean()

    trainer = trainer_of(train_transform=mixup, metric=agreement)
    for method in (trainer.check_fit, trainer.fit):
        with pytest.raises(RuntimeError) as caught:
            method(X, Y, **FIT)
        assert any("soft labels" in note for note in caught.value.__notes__)


def test_what_fit_returns_shows_its_last_record():
    trainer = trainer_of(metric="accuracy")
    fitted = trainer.fit(X, Y, **FIT)
    record = trainer.history[-1]
    assert repr(fitted).startswith(f"epoch 2, loss {record['loss']:.4g}, accuracy ")
    assert repr(fitted).endswith("arrays of 163 numbers)")
    assert "<td>accuracy</td>" in fitted._repr_html_()
    assert "0.weight" in trainer.get_parameters()._repr_html_()
    assert torch.as_tensor(fitted["0.weight"]).shape == (16, 6)
