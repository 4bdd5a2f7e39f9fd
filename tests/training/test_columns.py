"""Several inputs and outputs: tuples, lists and dicts of columns, on every engine, bit for bit as a
plain loop.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import BlockedTensor, BufferSpec, Merge, PartialShuffle, TrainTransform
from compss_train.data.columns import columns_of
from compss_train.engines.calls import intra_op_threads
from compss_train.model.devices import random_state
from tests.helpers import small_fits
from tests.helpers.models import assert_same_bits, state_arrays

RANDOM = np.random.default_rng(0)
USERS = RANDOM.integers(0, 9, 62)
ITEMS = RANDOM.normal(size=(62, 4)).astype(np.float32)
RATINGS = RANDOM.normal(size=62).astype(np.float32)
LIKES = RANDOM.integers(0, 2, 62)
SGD = {"optimizer": "sgd", "lr": 0.005, "momentum": 0.9}
STILL = {"shuffle": None, "shuffle_block_data": False}


class Towers(nn.Module):
    """Takes two inputs, and returns what its last line says."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.user = nn.Embedding(9, 8)
        self.item = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2))

    def forward(self, user, item):
        both = self.user(user) * self.item(item)
        return {"rating": both[:, :4].sum(dim=1), "like": both[:, 4:6]}


def loss(output, target):
    return functional.mse_loss(output["rating"], target["rating"]) + functional.cross_entropy(
        output["like"], target["like"]
    )


X = {"user": USERS, "item": ITEMS}
Y = {"rating": RATINGS, "like": LIKES}
FORMS = {
    "dict": X,
    "tuple": (USERS, ITEMS),
    "list": [torch.from_numpy(USERS), torch.from_numpy(ITEMS)],
    "blocks": (BlockedTensor.from_array(USERS, 4), ITEMS),
}


def trainer_of(engine="serial", workers=1, loss=loss, **options):
    return small_fits.trainer_of(engine, workers, 3, Towers, SGD, loss, metric=None, **options)


def plain_loop():
    net = Towers()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
    with intra_op_threads(1), random_state(3, "cpu"):
        for _ in range(2):
            for rows in np.array_split(np.arange(62), 4):
                for part in np.array_split(rows, 3):
                    user, item, rating, like = (
                        torch.from_numpy(each[part]) for each in (USERS, ITEMS, RATINGS, LIKES)
                    )
                    optimizer.zero_grad()
                    loss(net(user, item), {"rating": rating, "like": like}).backward()
                    optimizer.step()
    return state_arrays(net)


def blocks(value):
    return {name: BlockedTensor.from_array(each, 4) for name, each in value.items()}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_plain_loop(form):
    x = blocks(X) if form == "dict" else FORMS[form]
    y = blocks(Y)
    ours = trainer_of().fit(x, y, num_epochs=2, num_batches_per_worker=3, progress=False, **STILL)
    assert_same_bits(ours, plain_loop())


OPTIONS = [
    {"shuffle": "total"},
    {"shuffle": PartialShuffle(9)},
    {"buffer": BufferSpec("FIRO", 20)},
    {"merge": Merge(every=2, unit="batches"), "sample_weight": np.ones(62)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["total", "partial", "buffer", "weights"])
def test_engines_agree_whatever_the_batches_are(engine, options):
    def weighable(output, target, reduction="mean"):
        each = (output["rating"] - target["rating"]).square() + functional.cross_entropy(
            output["like"], target["like"], reduction="none"
        )
        return each.mean() if reduction == "mean" else each

    results = []
    for each in (engine, "serial"):
        trainer = trainer_of(each, 2, weighable)
        trainer.fit(
            X, Y, num_epochs=2, batch_size=7, progress=False, validation_data=(X, Y), **options
        )
        results.append((trainer.get_parameters(), trainer.history[-1]["val_loss"]))
    assert_same_bits(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_transforms_and_steps_get_the_structure():
    def transform(x):
        return {**x, "item": x["item"] / 2}

    def augment(x, y):
        assert list(y) == ["rating", "like"]
        return {**x, "item": x["item"] + torch.randn(x["item"].shape)}, y

    def step(model, batch, context):
        x, y = batch
        return context.loss(model(**x), y)

    results = []
    for by_sample in (False, True):
        given = TrainTransform(augment, by_sample=by_sample)
        pair = [
            trainer_of(transform=transform, train_transform=given, **more)
            for more in ({}, {"training_step": step})
        ]
        for trainer in pair:
            results.append(trainer.fit(X, Y, num_epochs=1, batch_size=7, progress=False))
        assert_same_bits(*results[-2:])
    assert results[0]["item.0.weight"].tobytes() != results[2]["item.0.weight"].tobytes()


def test_what_is_several_columns_and_what_is_one_array():
    array = np.zeros((3, 2), np.float32)
    assert columns_of([array, array], "x")[1]["x"].shape == (2, 3, 2)
    for one in ([array, array], [[1.0, 2.0], [3.0, 4.0]], ((1.0, 2.0), (3.0, 4.0))):
        structure, columns = columns_of(one, "x")
        assert structure is None
        assert isinstance(columns["x"], np.ndarray)
    for several in ([array, np.zeros(3)], (array, array), [BlockedTensor.from_array(array, 1)] * 2):
        structure, columns = columns_of(several, "x")
        assert structure == type(several)([None, None])
        assert [*columns] == ["x[0]", "x[1]"]
    structure, columns = columns_of({"a": (array, [array, np.zeros(3)])}, "x")
    assert structure == {"a": (None, [None, None])}
    assert columns["x['a'][0]"] is array
    assert [*columns] == ["x['a'][0]", "x['a'][1][0]", "x['a'][1][1]"]


@pytest.mark.parametrize(
    ("x", "y", "name"),
    [
        ({"user": BlockedTensor.from_array(USERS, 4), "item": ITEMS[:61]}, Y, "x['item']"),
        (X, {**Y, "like": LIKES[:61]}, "y['like']"),
        ({}, Y, "an empty dict has no samples"),
    ],
)
def test_columns_that_do_not_fit_are_named(x, y, name, raises):
    with raises(ValueError, name):
        trainer_of().fit(x, y, num_epochs=1, batch_size=7)


def test_arguments_that_the_network_lacks_are_explained():
    with pytest.raises(TypeError, match="forward") as error:
        trainer_of().predict({"user": USERS, "thing": ITEMS})
    assert "keyword arguments user, thing" in "".join(error.value.__notes__)
