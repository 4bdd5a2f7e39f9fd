"""Laws of fits: an estimator trains as the trainer does, reproducibly, and continues with warm
starts.
"""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import nn

from compss_train import BlockedTensor, DistributedClassifier, DistributedTrainer, Merge
from compss_train.training import PostLocal
from tests.helpers.models import assert_same_bits, classification, mlp, state_arrays
from tests.helpers.tolerances import output_error, sum_error
from tests.integrations.sklearn.estimators import FAST_ADAM, classifier, digits, regressor

# A few roundings, and those of exponents, which are below 20.
SOFTMAX = sum_error(np.float32, 32)

X, Y = classification()


@pytest.mark.filterwarnings("error:evaluate and predict take the parameters")
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "shuffle": None, "fit_options": {"shuffle_block_data": False}},
        {"num_workers": 3, "merge": Merge(unit="blocks"), "batch_size": 4},
        {
            "num_workers": 3,
            "merge": Merge(every=PostLocal(epochs=1, then=2), unit="batches"),
            "batch_size": 4,
        },
        {"batch_size": None, "fit_options": {"num_batches_per_worker": 3}, "merge": Merge(every=0)},
        {"num_workers": 3, "batch_size": 4, "merge": "post_local"},
        {"num_workers": 3, "batch_size": None, "merge": "auto"},
        {"shuffle": "blocks", "build_options": {"precision": "bf16"}},
    ],
)
def test_an_estimator_trains_as_the_trainer_does(options):
    ours = classifier(net=mlp(), optimizer=FAST_ADAM, num_epochs=2, **options).fit(X, Y)
    trainer = DistributedTrainer(options.get("num_workers", 2), engine="serial", seed=0, threads=1)
    trainer.build(mlp(), FAST_ADAM, "cross_entropy", "accuracy", **options.get("build_options", {}))
    given = {name: options[name] for name in ("merge", "batch_size") if name in options}
    fit = {"batch_size": 32, "shuffle": "total", **given, **options.get("fit_options", {})}
    theirs = trainer.fit(
        X, Y, num_epochs=2, progress=False, **{**fit, "shuffle": options.get("shuffle", "total")}
    )
    assert_same_bits(state_arrays(ours.module_), theirs)
    outputs = trainer.predict(BlockedTensor.from_array(X, (1, 1)))  # in batches of the same size
    np.testing.assert_array_equal(ours.predict(X), outputs.argmax(axis=1))
    np.testing.assert_allclose(
        ours.predict_proba(X), torch.from_numpy(outputs).softmax(1), rtol=SOFTMAX
    )
    assert [record["loss"] for record in ours.history_] == [
        record["loss"] for record in trainer.history
    ]


@pytest.mark.parametrize(
    ("options", "optimizer", "schedule"),
    [
        ({}, {"optimizer": "adam", "lr": 1e-3}, None),
        ({"optimizer": "sgd", "lr": 0.1}, {"optimizer": "sgd", "lr": 0.1}, None),
        (
            {"optimizer": {"optimizer": "sgd"}, "hidden": 100},
            {"optimizer": "sgd", "lr": 1e-3},
            None,
        ),
        ({"optimizer": {"optimizer": torch.optim.SGD}}, {"optimizer": torch.optim.SGD}, None),
        ({"schedule": "linear"}, {"optimizer": "adam", "lr": 1e-3}, lambda epoch: 1 - epoch / 5),
        (
            {"schedule": "cosine"},
            {"optimizer": "adam", "lr": 1e-3},
            lambda epoch: 0.5 + 0.5 * math.cos(math.pi * epoch / 5),
        ),
    ],
)
def test_names_stand_for_optimizers_and_schedules(options, optimizer, schedule):
    build = {"schedule": schedule, **options.get("build_options", {})}
    given = {"hidden": (100,), "schedule": None, **options}
    ours = classifier(**given).fit(X, Y)
    theirs = classifier(optimizer=optimizer, build_options=build).fit(X, Y)
    assert_same_bits(state_arrays(ours.module_), state_arrays(theirs.module_))


def test_random_state_follows_the_rules_of_scikit_learn():
    def fitted(random_state):
        return classifier(random_state=random_state, num_epochs=1).fit(X, Y)

    assert fitted(3).seed_ == 3
    drawn = np.random.RandomState(4)
    assert fitted(drawn).seed_ != fitted(drawn).seed_
    np.random.seed(5)
    first = fitted(None)
    second = fitted(None)
    np.random.seed(5)
    again = fitted(None)
    assert first.seed_ == again.seed_ != second.seed_
    assert_same_bits(state_arrays(first.module_), state_arrays(again.module_))


def test_clones_train_alike_and_the_given_module_is_never_modified():
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    estimator = classifier(net=net, optimizer=FAST_ADAM, callbacks=[])
    twin = clone(estimator)
    ours = estimator.get_params()
    theirs = twin.get_params()
    assert_same_bits(state_arrays(ours.pop("net")), state_arrays(theirs.pop("net")))
    assert ours == theirs
    np.testing.assert_array_equal(
        estimator.fit(X, Y).predict_proba(X), twin.fit(X, Y).predict_proba(X)
    )
    assert estimator.net is net
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("estimator", [classifier(), classifier(net=mlp()), regressor(hidden=[])])
def test_a_pickled_estimator_predicts_the_same(estimator):
    fitted = clone(estimator).fit(X, Y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert again.history_ == fitted.history_
    again.partial_fit(X, Y)
    assert again.n_iter_ == fitted.n_iter_ + 1


def test_fits_use_worker_processes_and_keep_none(shared_local):
    data = X.astype(np.float64), np.array(["red", "green", "blue"])[Y]
    processes = DistributedClassifier(engine=shared_local, threads=1, num_epochs=3, random_state=0)
    alike = clone(processes).fit(*data)
    assert alike.engine is shared_local
    serial = classifier(num_epochs=3).fit(*data)
    np.testing.assert_array_equal(alike.predict_proba(data[0]), serial.predict_proba(data[0]))
    assert not any(isinstance(value, DistributedTrainer) for value in vars(alike).values())
    with pytest.raises(
        TypeError,
        match=(
            "cannot be pickled; name the engine instead: 'local'; of a trainer keep the network"
        ),
    ):
        pickle.dumps(alike)


def test_partial_fits_and_warm_starts_continue():
    started = classifier(num_epochs=2).fit(X, Y)
    on = clone(started).partial_fit(X, Y, classes=[2, 0, 1])
    on.partial_fit(X[:1], Y[:1]).partial_fit(X, Y)
    assert on.n_iter_ == 3
    assert [(record["round"], record["epoch"]) for record in on.history_] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    warm = clone(started).set_params(warm_start=True, num_epochs=1).fit(X, Y)
    first = state_arrays(warm.module_)
    losses = [warm.fit(X, Y).history_[-1]["loss"] for _ in range(10)]
    assert losses[-1] < losses[0]
    assert warm.n_iter_ == len(warm.history_) == 11
    cold = warm.set_params(warm_start=False).fit(X, Y)
    assert_same_bits(state_arrays(cold.module_), first)


def test_held_out_samples_are_evaluated_and_not_trained():
    estimator = classifier(validation_fraction=0.25, num_epochs=2).fit(X, Y)
    assert [record["samples"] for record in estimator.history_] == [45, 45]
    assert all("val_loss" in record and "val_accuracy" in record for record in estimator.history_)
    assert regressor(validation_fraction=0.5, num_epochs=1).fit(X, Y).history_[0]["samples"] == 30


@pytest.mark.parametrize(
    ("options", "monitored"),
    [
        ({"validation_fraction": 0.25}, "val_loss"),
        ({"fit_options": {"validation_data": (X[:20], Y[:20])}}, "val_loss"),
        ({}, "loss"),
    ],
)
def test_n_iter_no_change_stops_with_the_best_parameters(options, monitored):
    unsteady = {"optimizer": "sgd", "lr": 3.0}
    estimator = classifier(n_iter_no_change=3, num_epochs=1000, optimizer=unsteady, **options).fit(
        X, Y
    )
    losses = [record[monitored] for record in estimator.history_]
    assert len(losses) == estimator.n_iter_ == np.argmin(losses) + 4 < 1000
    best = classifier(num_epochs=int(np.argmin(losses)) + 1, optimizer=unsteady, **options).fit(
        X, Y
    )
    assert_same_bits(state_arrays(estimator.module_), state_arrays(best.module_))


@pytest.mark.parametrize(
    ("loss", "last"),
    [
        ("cross_entropy", nn.Identity()),
        (nn.CrossEntropyLoss(), nn.Identity()),
        ("categorical_cross_entropy", nn.Softmax(dim=1)),
        ("sce", nn.Softmax(dim=1)),
        (nn.NLLLoss(), nn.LogSoftmax(dim=1)),
    ],
)
def test_probabilities_follow_the_loss(loss, last):
    estimator = classifier(net=nn.Sequential(mlp(), last), loss=loss, optimizer=FAST_ADAM).fit(X, Y)
    logits = estimator.module_[0](torch.from_numpy(X)).detach()
    probabilities = estimator.predict_proba(X)
    rounding = 2 * output_error(estimator.module_[0], X) + SOFTMAX
    np.testing.assert_allclose(probabilities, logits.softmax(1), rtol=rounding)
    np.testing.assert_allclose(
        estimator.decision_function(X), np.log(probabilities), rtol=SOFTMAX, atol=SOFTMAX
    )
    np.testing.assert_array_equal(estimator.predict(X), probabilities.argmax(axis=1))


def test_predictions_have_the_shape_and_precision_of_targets():
    one = X[:, 0]
    for y in (one, one[:, None], X[:, :3], X[:, :3].astype(np.float64)):
        predicted = regressor().fit(X, y).predict(X[:7])
        assert predicted.shape == (7, *y.shape[1:])
        assert predicted.dtype == y.dtype
    assert regressor().fit(X, X[:, :3]).n_outputs_ == 3


def test_images_with_a_custom_network():
    def convolutions(inputs, outputs):
        assert inputs == 1
        return nn.Sequential(
            nn.Conv2d(inputs, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, outputs)
        )

    x, y = digits()
    images = x.reshape(-1, 1, 8, 8)
    estimator = classifier(net=convolutions, optimizer=FAST_ADAM, num_epochs=3).fit(images, y)
    assert estimator.score(images, y) > 0.85
    bytes_in = classifier(
        net=convolutions,
        optimizer=FAST_ADAM,
        num_epochs=3,
        dtype=None,
        build_options={"transform": _scaled},
    ).fit((images * 16).astype(np.uint8), y)
    np.testing.assert_array_equal(
        bytes_in.predict((images * 16).astype(np.uint8)), estimator.predict(images)
    )


def _scaled(batch):
    return batch.float() / 16


def test_defaults_learn_data_sets_of_scikit_learn():
    x, x_test, y, y_test = train_test_split(*digits(1797), random_state=0)
    assert classifier(num_epochs=12).fit(x, y).score(x_test, y_test) > 0.9
    x, y = load_diabetes(return_X_y=True, scaled=False)
    x = (x - x.mean(0)) / x.std(0)
    y = (y - y.mean()) / y.std()
    assert regressor(num_epochs=12).fit(x, y).score(x, y) > 0.4
