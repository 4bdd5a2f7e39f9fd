"""Each row of the tables of differences in docs/from-dislib.md and
docs/reference/integrations.md.
"""

import itertools
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, optim

from compss_train import BlockedTensor, DistributedTrainer, DivergedError, Gradients, Merge
from compss_train.integrations.dislib import (
    EncapsulatedFunctionsDistributedEddl,
    EncapsulatedFunctionsDistributedPytorch,
)
from compss_train.integrations.dislib.eddl import EDDL_LOSSES, OPTIMIZER_DEFAULTS
from compss_train.model.optimizers import in_torch
from tests.helpers.cases import each_value
from tests.helpers.models import FITS, assert_same_bits, awkward_net, mlp
from tests.helpers.small_fits import numbers_of
from tests.helpers.tolerances import sum_error
from tests.integrations.dislib_tensors import Tensor, tensors, whole

PAGES = [
    Path(__file__).parents[2] / "docs" / page
    for page in ("from-dislib.md", "reference/integrations.md")
]
TEXT = "\n".join(page.read_text() for page in PAGES)
HELD = []
X, Y = tensors()
ORDERED = {"shuffle_blocks": False, "shuffle_block_data": False, "progress": False}


def row(name):
    """Mark the test of a row of one of the tables, by its first cell."""

    def mark(function):
        HELD.append(name)
        return function

    return mark


def softmax(net):
    return nn.Sequential(net, nn.Softmax(dim=1))


def pytorch(net=None, num_workers=1, *, lr=0.05, momentum=0.9, num_gpu=0, num_nodes=0, **options):
    made = EncapsulatedFunctionsDistributedPytorch(num_workers, engine="serial", seed=3, threads=1)
    optimizer = {"lr": lr, "momentum": momentum}
    made.build(
        net or mlp(), optim.SGD, nn.CrossEntropyLoss, optimizer, num_gpu, num_nodes, **options
    )
    return made


def eddl(net=None, num_workers=1, *, lr=0.05, momentum=0.9, num_gpu=0, num_nodes=0, **options):
    made = EncapsulatedFunctionsDistributedEddl(num_workers, engine="serial", seed=3, threads=1)
    spec = {"optimizer": "sgd", "lr": lr, "momentum": momentum}
    # The same numbers as the other class has.
    options = {"transform": torch.Tensor.float, **options}
    made.build(
        softmax(net or mlp()),
        spec,
        "softmax_cross_entropy",
        "accuracy",
        num_gpu,
        num_nodes,
        **options,
    )
    return made


CLASSES = pytest.mark.parametrize("made", [pytorch, eddl])


def rows_of(*blocks):
    """Return x and y with blocks of the first rows, of these numbers."""
    x = whole(X)
    y = whole(Y)
    cuts = list(itertools.pairwise(itertools.accumulate(blocks, initial=0)))
    return tuple(BlockedTensor([[each[start:stop]] for start, stop in cuts]) for each in (x, y))


# Both classes

OF_THE_TRAINER = (
    "parameters that workers exchange",
    "`n_epocs_sync=0`",
    "samples of a block",
    "mean of the workers",
    "asynchronous merges",
    "`fit_asynchronous_with_GPU`",
    "total shuffle",
    "an exception in a task",
    "history, evaluation, prediction, seed",
)
"""Rows of what ``DistributedTrainer`` does, which its own tests hold: both classes train as it
does.
"""
OF_OTHER_TESTS = (
    # Test_dislib_versions.py.
    *("`scheduler`", "images of a batch, gradients", "training curves every n epochs"),
    "shapes of the result",  # test_dislib_scripts.py
    "adagrad, adamax, adadelta, nadam",  # test_optimizers_have_the_numbers_of_dislib
)
HELD.extend((*OF_THE_TRAINER, *OF_OTHER_TESTS))


@pytest.mark.parametrize(("fit", "made"), each_value(FITS, [pytorch, eddl]))
def test_both_classes_train_as_the_trainer_does(made, fit):
    x, y = rows_of(17, 13, 20, 10)
    every = (0,) if "n_epochs" in fit else ()
    encapsulated = made(awkward_net(), 3)
    trainer = trainer_like(made, awkward_net(), 3)
    getattr(encapsulated, fit)(x, y, 3, 2, *every, progress=False)
    renewing = Merge(optimizer_state="reset_blocks")
    getattr(trainer, fit)(x, y, 3, 2, *every, progress=False, merge=renewing)
    assert_same_bits(encapsulated.trainer.get_parameters(), trainer.get_parameters())
    assert numbers_of(list(encapsulated.trainer.history)) == numbers_of(list(trainer.history))
    assert encapsulated.trainer.seed == trainer.seed


def trainer_like(made, net, num_workers):
    trainer = DistributedTrainer(num_workers, engine="serial", seed=3, threads=1)
    spec = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    options = {"transform": torch.Tensor.float}
    if made is pytorch:
        trainer.build(net, spec, nn.CrossEntropyLoss(), **options)
    else:
        trainer.build(softmax(net), spec, "categorical_cross_entropy", "accuracy", **options)
    return trainer


@row("`num_gpu=0`")
@CLASSES
@pytest.mark.parametrize("gpus", [{}, {"num_gpu": 2, "num_nodes": 1}], ids=str)
def test_without_gpus_the_cpu_trains(made, gpus, monkeypatch):
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    encapsulated = made(num_workers=3, **gpus)
    encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    assert encapsulated.trainer.configuration["build"]["num_gpu"] == 0


@row("optimizer state")
@CLASSES
def test_optimizer_states_are_kept_where_that_is_asked_for(made):
    encapsulated = made()
    trainer = trainer_like(made, mlp(), 1)
    encapsulated.fit_synchronous_with_GPU(
        X, Y, 3, 2, progress=False, merge=Merge(optimizer_state="keep")
    )
    trainer.fit_synchronous_with_GPU(X, Y, 3, 2, progress=False)
    assert_same_bits(encapsulated.trainer.get_parameters(), trainer.get_parameters())


@row("dtype of x")
@CLASSES
def test_x_is_converted(made):
    dtypes = []

    class Probe(nn.Linear):
        def forward(self, x):
            dtypes.append(x.dtype)
            return super().forward(x)

    for dtype in (torch.float64, torch.uint8):
        x, _ = tensors(dtype)
        made(Probe(6, 3)).fit_synchronous_with_GPU(x, Y, 3, 1, progress=False)
    assert set(dtypes) == {torch.float32}
    double = made(Probe(6, 3).double(), transform=torch.Tensor.double)
    double.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    assert dtypes[-1] == torch.float64


@row("a loss or parameter that becomes NaN")
@CLASSES
def test_a_network_that_diverges_is_an_error(made):
    encapsulated = made(lr=0.05)
    encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    good = encapsulated.trainer.get_parameters()
    bad = Tensor(whole(X) * np.nan, (2, 2))
    with pytest.raises(DivergedError):
        encapsulated.fit_synchronous_with_GPU(bad, Y, 3, 1, progress=False)
    assert_same_bits(encapsulated.trainer.get_parameters(), good)
    going_on = pytorch(gradients=Gradients(on_nan="ignore"))
    going_on.fit_synchronous_with_GPU(bad, Y, 3, 1, progress=False)
    assert all(np.isnan(array).all() for array in going_on.trainer.get_parameters().values())


@row("targets (n,) of outputs (n, 1)")
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss])
def test_targets_are_not_compared_with_the_outputs_of_other_samples(loss):
    one = EncapsulatedFunctionsDistributedPytorch(2, engine="serial", seed=3, threads=1)
    one.build(nn.Linear(6, 1), optim.SGD, loss, {"lr": 0.001})
    y = whole(Y)[:, 0]
    with pytest.raises(ValueError, match=r"such as y\[:, None\] for a single output"):
        one.fit_synchronous_with_GPU(X, Tensor(y, (2, 2)), 3, 1, progress=False)
    one.fit_synchronous_with_GPU(X, Tensor(y[:, None], (2, 2)), 3, 1, progress=False)


def built(spec, loss="softmax_cross_entropy", net=None, **options):
    made = EncapsulatedFunctionsDistributedEddl(1, engine="serial", seed=3, threads=1)
    made.build(net or softmax(mlp()), spec, loss, None, **options)
    return made


def fitted(made, x=X, y=Y, epochs=2):
    made.fit_synchronous_with_GPU(x, y, 3, epochs, merge=Merge(optimizer_state="keep"), **ORDERED)
    return (made if isinstance(made, DistributedTrainer) else made.trainer).get_parameters()


def of_trainer(spec, **options):
    trainer = DistributedTrainer(1, engine="serial", seed=3, threads=1)
    trainer.build(softmax(mlp()), spec, "categorical_cross_entropy", **options)
    return trainer


def by_255(batch):
    return batch.float() / 255


SGD = {"optimizer": "sgd", "lr": 20.0}


@row("x")
def test_x_is_divided_by_255():
    assert_same_bits(fitted(built(SGD)), fitted(of_trainer(SGD, transform=by_255)))
    plain = {"transform": torch.Tensor.float}
    small = {"optimizer": "sgd", "lr": 0.05}
    assert_same_bits(fitted(built(small, **plain)), fitted(of_trainer(small, **plain)))
    whole = built(SGD)
    scaled = of_trainer(SGD, transform=by_255)
    assert whole.trainer.evaluate(X, Y) == scaled.evaluate(X, Y)
    np.testing.assert_array_equal(whole.trainer.predict(X), scaled.predict(X))


@row("`cross_entropy`, `ce`, `softmax_cross_entropy`")
@pytest.mark.parametrize("loss", ["cross_entropy", "ce", "softmax_cross_entropy"])
def test_cross_entropies_take_probabilities(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = fitted(built(SGD, loss))
    assert_same_bits(ours, fitted(built(SGD, "categorical_cross_entropy")))
    # The gradient with respect to what goes into the softmax is that of EDDL: (output - target) /
    # samples.
    logits = torch.randn(8, 3, requires_grad=True, generator=torch.Generator().manual_seed(1))
    target = torch.eye(3)[torch.arange(8) % 3]
    EDDL_LOSSES[loss](logits.softmax(1), target).backward()
    rounding = sum_error(np.float32, 16)  # of a softmax and its gradient
    torch.testing.assert_close(
        logits.grad, (logits.detach().softmax(1) - target) / 8, rtol=0, atol=rounding
    )
    with pytest.raises(
        ValueError,
        match=r"not probabilities; end the network with a softmax, or use .*CrossEntropyLoss",
    ):
        fitted(built(SGD, loss, net=mlp()), epochs=1)
    fitted(built({"optimizer": "sgd", "lr": 1.0}, nn.CrossEntropyLoss(), net=mlp()))
    with pytest.warns(UserWarning, match="the loss takes logits"):
        fitted(pytorch(softmax(mlp())))


NUMBERS = {
    "rho": {"rmsprop": 0.9, "adadelta": 0.9},
    "epsilon": {
        "adam": 1e-6,
        **dict.fromkeys(("rmsprop", "adagrad", "adamax", "adadelta", "nadam"), 1e-5),
    },
    "schedule_decay": {"nadam": 0.0},
}
CASES = [
    (name, optimizer, number) for name, own in NUMBERS.items() for optimizer, number in own.items()
]


@row("`rho` of rmsprop and adadelta")
@row("`epsilon`")
@row("`schedule_decay` of nadam")
@pytest.mark.parametrize(("name", "optimizer", "number"), CASES)
def test_optimizers_have_the_numbers_of_dislib(name, optimizer, number):
    spec = {"optimizer": optimizer, "lr": 0.05}
    own = {
        each: by_optimizer[optimizer]
        for each, by_optimizer in NUMBERS.items()
        if optimizer in by_optimizer
    }
    assert own == OPTIMIZER_DEFAULTS[optimizer]
    assert own[name] == number
    ours = fitted(built(spec))
    assert_same_bits(ours, fitted(of_trainer({**spec, **own}, transform=by_255)))
    other = {name: number / 2 + 1e-3}
    assert_same_bits(
        fitted(built({**spec, **other})),
        fitted(of_trainer({**spec, **own, **other}, transform=by_255)),
    )
    torchs = in_torch(optimizer, other)
    assert_same_bits(fitted(built({**spec, **other})), fitted(built({**spec, **torchs})))
    if torchs != other:
        with pytest.raises(
            ValueError, match=(f"{name} and {next(iter(torchs))}, two names of the same")
        ):
            built({**spec, **other, **torchs})


def test_the_class_for_torch_leaves_the_numbers_to_torch():
    made = EncapsulatedFunctionsDistributedPytorch(1, engine="serial", seed=3, threads=1)
    made.build(mlp(), optim.RMSprop, nn.CrossEntropyLoss, {"lr": 0.01})
    trainer = DistributedTrainer(1, engine="serial", seed=3, threads=1)
    rmsprop = {"optimizer": optim.RMSprop, "lr": 0.01}
    options = {"transform": torch.Tensor.float}
    trainer.build(mlp(), rmsprop, nn.CrossEntropyLoss(), **options)
    assert_same_bits(fitted(made), fitted(trainer))


@row("`weight_decay`")
def test_a_weight_decay_is_not_passed_over_in_silence():
    decayed = {**SGD, "weight_decay": 0.25}
    with pytest.warns(
        UserWarning,
        match=r"weight_decay=0.25 is torch's.*schedule=lambda epoch: .* else 1 / 1.25\)",
    ):
        ours = fitted(built(decayed))
    assert_same_bits(ours, fitted(of_trainer(decayed, transform=by_255)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = built(SGD, schedule=lambda epoch: 1 if epoch < 2 else 1 / 1.25)
        made.fit_synchronous_with_GPU(X, Y, 3, 4, progress=False)
        built(decayed, schedule=lambda epoch: 1.0)
    assert [record["lr"] for record in made.trainer.history] == pytest.approx([20, 20, 16, 16])


@row("`nesterov`, `amsgrad`")
def test_nesterov_and_amsgrad_have_an_effect():
    for spec in (
        {**SGD, "momentum": 0.9, "nesterov": True},
        {"optimizer": "adam", "lr": 0.5, "amsgrad": True},
    ):
        assert_same_bits(
            fitted(built(spec)),
            fitted(
                of_trainer(
                    {**OPTIMIZER_DEFAULTS.get(spec["optimizer"], {}), **spec}, transform=by_255
                )
            ),
        )


@row("mean of squares of rmsprop")
def test_rmsprop_keeps_a_running_mean():
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    x = Tensor(np.full((3, 2), 255.0), (1, 1))
    y = Tensor(np.array([[1.0], [2.0], [3.0]]), (1, 1))
    made = built(
        {"optimizer": "rmsprop", "lr": 0.1}, lambda output, target: (output * target).sum(), net=net
    )
    (ours,) = fitted(made, x, y, epochs=1).values()
    expected = 0.0
    mean = 0.0
    for gradient in (1.0, 2.0, 3.0):
        mean = 0.9 * mean + 0.1 * gradient**2
        expected -= 0.1 * gradient / (mean**0.5 + 1e-5)
    # Ten roundings a step.
    np.testing.assert_allclose(ours, [[expected] * 2], rtol=sum_error(np.float32, 3 * 10))


@row("gradient of `mean_squared_error`")
@row("gradient of `binary_cross_entropy`")
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_a_learning_rate_gives_the_gradients_of_eddl(loss):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 3), nn.Sigmoid())
    factor = {"mse": 3 / 2, "bce": 3}[loss]
    x = whole(X).float()
    y = whole(Y).float()
    with torch.no_grad():
        output = net(x / 255)
    delta = output - y  # of EDDL's losses, with respect to the outputs
    if loss == "bce":
        delta = delta / (output * (1 - output))
    through = delta * output * (1 - output) / 60
    expected = net[0].weight.detach() - 0.1 * through.T @ (x / 255)
    made = built({"optimizer": "sgd", "lr": 0.1 * factor}, loss, net=net)
    made.fit_synchronous_with_GPU(x, y, 1, 1, **ORDERED)
    # A change is 0.1 times a mean of inputs of 60 samples, each times a factor from 7 products and
    # some roundings.
    change = 0.1 * (x / 255).abs().mean(dim=0).max().item()
    rounding = sum_error(np.float32, 1, expected.abs().max().item()) + sum_error(
        np.float32, 60 + 7 + 13, change
    )
    np.testing.assert_allclose(made.model_parameters[0][0], expected, rtol=0, atol=rounding)


def test_each_row_of_the_tables_has_a_test():
    tables = re.findall(r"^\| \| .*\n\|---.*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    rows = [
        line.split(" | ")[0].removeprefix("| ") for table in tables for line in table.splitlines()
    ]
    assert sorted(rows) == sorted(HELD)
