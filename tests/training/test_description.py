"""``trainer.configuration``: everything that was given, as values that JSON can hold."""

import functools
import json
import math
from dataclasses import dataclass, field, fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import BlockedTensor, BufferSpec, DistributedTrainer, Simulations
from compss_train.integrations.melissa import BufferType
from compss_train.model import losses
from compss_train.model.optimizers import Gradients
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.description import MOST_ITEMS, described, stable_name
from compss_train.training.fit_options import FitOptions
from tests.helpers.models import SGD, classification, mlp

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    plain | st.just(np.float32(0.5)) | st.just(np.zeros((2, 3))) | st.just(object()) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def strict(value):
    return json.loads(json.dumps(value, allow_nan=False))


@given(values)
def test_descriptions_are_what_json_holds_and_descriptions_of_themselves(value):
    assert strict(described(value)) == described(value) == described(described(value))


@dataclass
class DataSource:
    loss: object
    arrays: list
    token: str = field(default="secret", repr=False)


class Unspeakable:
    def __repr__(self):
        raise RuntimeError


def test_other_values_are_told_by_name_type_and_shape():
    for value, told in [
        (np.zeros((5, 2), np.float32), "ndarray of float32 (5, 2)"),
        (torch.zeros(3), "Tensor of float32 (3,)"),
        (mlp, "tests.helpers.models.mlp"),
        (nn.MSELoss, "torch.nn.modules.loss.MSELoss"),
        (nn.MSELoss(), "MSELoss()"),
        (torch.Tensor.float, "torch.TensorBase.float"),
        (
            functools.partial(losses.categorical_cross_entropy, target=1),
            {"function": "compss_train.categorical_cross_entropy", "arguments": {"target": 1}},
        ),
        (
            functools.partial(mlp, mlp, "a", outputs="b"),
            {
                "function": "tests.helpers.models.mlp",
                "arguments": {"0": "tests.helpers.models.mlp", "1": "a", "outputs": "b"},
            },
        ),
        (BufferType.FIRO, "FIRO"),
        (math.nan, "nan"),
        ({1: -math.inf}, {"1": "-inf"}),
        (range(5), "range(0, 5)"),
        ([0] * (MOST_ITEMS + 1), "list of 101 items"),
        (DataSource(nn.L1Loss(), [np.ones(2)]), {"loss": "L1Loss()", "arrays": ["ndarray of float64 (2,)"]}),
        (
            BlockedTensor.from_array(np.zeros((6, 2)), (3, 1)),
            "BlockedTensor(3 x 1 blocks, 6 samples of float64 (2,))",
        ),
        (Unspeakable(), "Unspeakable, whose repr raises RuntimeError"),
        (object(), "<object object>"),
        ("x" * 1000, "x" * 1000),
        (bytearray(b"x" * 1000), "bytearray(b'" + "x" * 488 + "…"),
    ]:
        assert described(value) == told
    endless = []
    endless.append(endless)
    assert "[...]" in json.dumps(described(endless))


def test_a_trainer_tells_all_that_it_was_given():
    x, y = classification()
    trainer = DistributedTrainer(2, engine="serial", seed=3, threads=1)
    told = strict(trainer.configuration)
    assert told["trainer"] == {"num_workers": 2, "engine": "serial", "seed": 3, "threads": 1}
    assert (told["build"], told["fit"]) == (None, None)
    assert told["versions"]["torch"] == torch.__version__
    trainer.build(mlp(), SGD, nn.CrossEntropyLoss(), "accuracy", transform=torch.relu)
    built = strict(trainer.configuration)["build"]
    given = {each.name for each in (*fields(TrainingSpec), *fields(Gradients)) if each.repr}
    assert given - {"gradients"} <= built.keys()
    assert built["net"] == str(mlp())
    assert built["parameters"] == 16 * 6 + 16 + 3 * 16 + 3
    arguments = {"lr": 0.05, "momentum": 0.9}
    assert built["optimizer"] == {"function": "torch.optim.sgd.SGD", "arguments": arguments}
    assert (built["loss"], built["precision"], built["num_gpu"]) == ("CrossEntropyLoss()", "fp32", 0)
    buffer = BufferSpec("FIRO", 20)
    trainer.fit(x, y, num_epochs=1, batch_size=5, buffer=buffer, validation_data=(x[:7], y[:7]), progress=False)
    fit = strict(trainer.configuration)["fit"]
    assert {each.name for each in fields(FitOptions)} <= fit.keys()
    assert (fit["method"], fit["num_epochs"], fit["merge"]["kind"], fit["callbacks"]) == (
        "fit",
        1,
        "synchronous",
        [],
    )
    assert fit["buffer"]["capacity"] == 20
    assert fit["data"]["x"] == "BlockedTensor(2 x 1 blocks, 60 samples of float32 (6,))"
    assert "7 samples" in fit["validation_data"]["y"]
    assert fit["started"] <= trainer.history[0]["fit_started"] <= fit["started"] + 5
    trainer.build(mlp(), SGD, "cross_entropy")
    assert trainer.configuration["fit"] is None


def test_tokens_are_in_no_description():
    simulations = Simulations(senders=1, address="tcp://127.0.0.1:5555", token="ours alone")
    assert "ours alone" not in json.dumps(described(simulations)) + repr(simulations)
    assert described(simulations)["senders"] == 1


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("compss_train.losses.cross_entropy", "compss_train.cross_entropy"),
        ("compss_train.model.losses.cross_entropy(ignore_index=-1)", "compss_train.cross_entropy(ignore_index=-1)"),
        ("compss_train.cross_entropy", "compss_train.cross_entropy"),
        ("torch.nn.functional.mse_loss", "torch.nn.functional.mse_loss"),
        ("a sentence about compss_train.losses.mse", "a sentence about compss_train.losses.mse"),
    ],
)
def test_names_of_this_package_have_no_modules(stored, name):
    assert stable_name(stored) == name
