"""``trainer.configuration``: everything that was given, as values that JSON can hold; and presets
of options.
"""

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
from torch.nn.functional import mse_loss

from compss_train import BlockedTensor, BufferSpec, DistributedTrainer, Merge, Simulations
from compss_train.callbacks import Callback, Profile
from compss_train.integrations.melissa import BufferType
from compss_train.model import losses
from compss_train.model.gradients import Gradients
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.training_spec import TrainingSpec
from compss_train.training import PostLocal
from compss_train.training.data_source import as_data_source
from compss_train.training.description import MOST_ITEMS, described, stable_name
from compss_train.training.fit import FitOptions
from compss_train.training.presets import NESTEROV
from tests.helpers.models import ADAM, SGD, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.small_fits import X, Y, trainer_of

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    plain
    | st.just(np.float32(0.5))
    | st.just(np.zeros((2, 3)))
    | st.just(object())
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
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
        (
            DataSource(nn.L1Loss(), [np.ones(2)]),
            {"loss": "L1Loss()", "arrays": [("ndarray of float64 (2,)")]},
        ),
        (
            BlockedTensor.from_array(np.zeros((6, 2)), (3, 1)),
            "BlockedTensor(3 x 1 blocks, 6 samples of float64 (2,))",
        ),
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
    assert told["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    trainer.build(mlp(), SGD, nn.CrossEntropyLoss(), "accuracy", transform=torch.relu)
    built = strict(trainer.configuration)["build"]
    given = {each.name for each in (*fields(TrainingSpec), *fields(Gradients)) if each.repr}
    assert given - {"gradients"} <= built.keys()
    assert built["net"] == str(mlp())
    assert built["parameters"] == 16 * 6 + 16 + 3 * 16 + 3
    arguments = {"lr": 0.05, "momentum": 0.9}
    assert built["optimizer"] == {"function": "torch.optim.sgd.SGD", "arguments": arguments}
    assert (built["loss"], built["precision"], built["num_gpu"]) == (
        "CrossEntropyLoss()",
        "fp32",
        0,
    )
    buffer = BufferSpec("FIRO", 20)
    trainer.fit(
        x,
        y,
        num_epochs=1,
        batch_size=5,
        buffer=buffer,
        validation_data=(x[:7], y[:7]),
        progress=False,
    )
    fit = strict(trainer.configuration)["fit"]
    assert {each.name for each in fields(FitOptions) if each.repr} <= fit.keys()
    assert (fit["method"], fit["num_epochs"], fit["merge"]["kind"], fit["callbacks"]) == (
        "fit",
        1,
        "synchronous",
        [],
    )
    assert fit["buffer"]["capacity"] == 20
    assert fit["data"]["columns"]["x"] == "BlockedTensor(2 x 1 blocks, 60 samples of float32 (6,))"
    assert "7 samples" in fit["validation_data"]["columns"]["y"]
    assert fit["started"] <= trainer.history[0]["fit_started"] <= fit["started"] + 5
    trainer.build(mlp(), SGD, "cross_entropy")
    assert trainer.configuration["fit"] is None


def test_a_running_fit_tells_what_it_tells_when_it_has_ended(tmp_path):
    class Reader(Callback):
        def on_fit_start(self, trainer, total_samples):
            told.append(trainer.configuration["fit"])

    told = []
    trainer = trainer_of()
    callbacks = [Reader(), Profile(tmp_path / "trace.json", round=1)]
    for _ in range(2):
        trainer.fit(X, Y, num_epochs=1, batch_size=6, callbacks=callbacks, progress=False)
        assert told.pop() == trainer.configuration["fit"]
    fit = strict(trainer.configuration)["fit"]
    assert fit["profile"] == str(tmp_path / "trace.json")
    assert [name.rpartition(".")[2] for name in fit["callbacks"]] == ["Reader", "Profile"]


def test_tokens_are_in_no_description():
    simulations = Simulations(senders=1, address="tcp://127.0.0.1:5555", token="ours alone")
    assert "ours alone" not in json.dumps(described(simulations)) + repr(simulations)
    assert described(simulations)["senders"] == 1


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("compss_train.losses.cross_entropy", "compss_train.cross_entropy"),
        (
            "compss_train.model.losses.cross_entropy(ignore_index=-1)",
            "compss_train.cross_entropy(ignore_index=-1)",
        ),
        ("compss_train.cross_entropy", "compss_train.cross_entropy"),
        ("torch.nn.functional.mse_loss", "torch.nn.functional.mse_loss"),
        ("a sentence about compss_train.losses.mse", "a sentence about compss_train.losses.mse"),
    ],
)
def test_names_of_this_package_have_no_modules(stored, name):
    assert stable_name(stored) == name


def chosen(
    merge,
    net=mlp,
    workers=32,
    samples=60_000,
    optimizer=SGD,
    num_epochs=8,
    *,
    scheduled=False,
    **batches,
):
    merge = Merge.of(merge)
    spec = TrainingSpec(net=net(), optimizer=optimizer_factory(optimizer), loss=mse_loss)
    if not batches and merge.preset != "auto":
        batches = {"batch_size": 100}
    asked = FitOptions(num_epochs=num_epochs, merge=merge, **batches)
    options = asked.for_data(
        as_data_source(np.zeros(samples), None, 4), workers, spec, scheduled=scheduled
    )
    return options.merge, options.batch_size


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_batches_are_small_and_merged_often_with_batch_norm_and_a_schedule(optimizer):
    for workers, every in ((2, 4), (8, 2), (32, 2)):
        merge, batch = chosen("auto", awkward_net, workers, optimizer=optimizer, scheduled=True)
        assert (merge.every, batch) == (every, {2: 100, 8: 50, 32: 16}[workers])
        assert (merge.optimizer_state, merge.outer_optimizer) == ("average", None)
    assert chosen("auto", mlp, scheduled=True) == chosen("auto", mlp)


def test_what_is_given_wins():
    given = {
        "every": 3,
        "unit": "blocks",
        "outer_optimizer": ADAM,
        "optimizer_state": "keep",
        "dtype": "int8",
    }
    for preset in ("auto", "diloco", "slowmo", "post_local"):
        assert chosen(Merge(preset, **given), batch_size=7) == (
            Merge("synchronous", **given, rule="weighted"),
            7,
        )
    assert chosen("auto", batch_size=10)[0].every == round(15_000 / 320)
    for unit, every, outer in (("batches", 1, None), ("epochs", 1, NESTEROV)):
        merge, _ = chosen(Merge("auto", every=every, unit=unit))
        assert (merge.every, merge.unit, merge.outer_optimizer) == (every, unit, outer)
    merge, batch = chosen("auto", num_batches_per_worker=1500)
    assert batch is None
    assert merge.every == round(15_000 / 320)  # blocks of 15,000 samples in batches of 10


def test_known_choices_of_presets():
    # The plain loop.
    assert chosen("auto", workers=1) == (Merge("synchronous").with_defaults(), 100)
    for net, outer in ((mlp, NESTEROV), (awkward_net, None)):
        merge, _ = chosen("auto", net, optimizer=ADAM)
        assert (merge.outer_optimizer, merge.optimizer_state) == (outer, "average")
    assert chosen("diloco")[0].every == 500
    assert chosen("slowmo")[0].outer_optimizer["momentum"] == 0.7
    assert chosen("post_local")[0].every == PostLocal(epochs=4, then=16)


@pytest.mark.parametrize("preset", ["auto", "diloco", "slowmo", "post_local"])
def test_a_fit_with_a_preset_is_one_with_its_options(preset):
    batch = {} if preset == "auto" else {"batch_size": 6}
    ours = trainer_of()
    theirs = trainer_of()
    ours.fit(X, Y, num_epochs=3, progress=False, shuffle="total", merge=preset, **batch)
    merge, size = chosen(preset, awkward_net, 3, 57, ADAM, num_epochs=3, **batch)
    theirs.fit(X, Y, num_epochs=3, progress=False, shuffle="total", merge=merge, batch_size=size)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    used = ours.configuration["fit"]
    assert used["preset"] == preset
    assert (used["batch_size"], used["merge"]["unit"]) == (size, merge.unit)
    ours.check_fit(X, Y, num_epochs=3, merge=preset, **batch)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"merge": "diloco", "batch_size": None}, "batch_size=None"),
        ({"merge": "auto", "batch_size": 0}, "batch_size=0"),
        ({"merge": "auto", "batch_size": "6"}, "batch_size='6'"),
        (
            {"merge": "auto", "batch_size": None, "num_batches_per_worker": 0},
            "num_batches_per_worker=0",
        ),
        ({"merge": "post_local", "num_epochs": "3"}, "num_epochs='3'"),
    ],
)
def test_wrong_presets(options, name, raises):
    with raises(ValueError, name):
        trainer_of().fit(X, Y, **{"num_epochs": 1, "batch_size": 6, **options})
