"""Each row of the tables of docs/from-dislib.md, for both classes."""

import itertools
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, optim

from compss_train import BlockedTensor, DistributedTrainer, Merge
from compss_train.engines import SerialEngine
from compss_train.integrations.dislib import (
    EDDL_LOSSES,
    OPTIMIZER_DEFAULTS,
    EncapsulatedFunctionsDistributedEddl,
    EncapsulatedFunctionsDistributedPytorch,
)
from compss_train.model.losses import categorical_cross_entropy
from tests.helpers.models import assert_close, assert_same_bits, awkward_net, mlp, state_arrays
from tests.integrations.dislib_tensors import Tensor, tensors, whole

TEXT = (Path(__file__).parents[2] / "docs" / "from-dislib.md").read_text()
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
    made.build(net or mlp(), optim.SGD, nn.CrossEntropyLoss, optimizer, num_gpu, num_nodes, **options)
    return made


def eddl(net=None, num_workers=1, *, lr=0.05, momentum=0.9, num_gpu=0, num_nodes=0, **options):
    made = EncapsulatedFunctionsDistributedEddl(num_workers, engine="serial", seed=3, threads=1)
    spec = {"optimizer": "sgd", "lr": lr, "momentum": momentum}
    options = {"transform": torch.Tensor.float, **options}  # the same numbers as the other class has
    made.build(softmax(net or mlp()), spec, "softmax_cross_entropy", "accuracy", num_gpu, num_nodes, **options)
    return made


CLASSES = pytest.mark.parametrize("made", [pytorch, eddl])


def arrays(encapsulated):
    """Return the parameters by name, without the prefix of the softmax."""
    parameters = encapsulated.trainer.get_parameters()
    strip = isinstance(encapsulated, EncapsulatedFunctionsDistributedEddl)
    return {name.partition(".")[2] if strip else name: array for name, array in parameters.items()}


def rows_of(*blocks):
    """Return x and y with blocks of the first rows, of these numbers."""
    x, y = whole(X), whole(Y)
    cuts = list(itertools.pairwise(itertools.accumulate(blocks, initial=0)))
    return tuple(BlockedTensor([[each[start:stop]] for start, stop in cuts]) for each in (x, y))


# Both classes


@row("parameters that workers exchange")
@CLASSES
def test_every_entry_of_any_module_is_exchanged(made):
    encapsulated = made(awkward_net(), 2)
    encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    trained, before = arrays(encapsulated), state_arrays(awkward_net())
    assert list(trained) == list(before)
    for name in before:
        assert (trained[name] != before[name]).any(), name


@row("`num_gpu=0`")
@CLASSES
@pytest.mark.parametrize("gpus", [{}, {"num_gpu": 2, "num_nodes": 1}], ids=str)
def test_without_gpus_the_cpu_trains(made, gpus, monkeypatch):
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    encapsulated = made(num_workers=3, **gpus)
    encapsulated.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    assert encapsulated.trainer.configuration["build"]["num_gpu"] == 0


@row("workers and GPUs")
@CLASSES
def test_workers_share_gpus(made):
    devices = [SerialEngine.device(worker, 2) for worker in range(5)]
    assert devices == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    encapsulated = made(num_workers=5)
    assert (encapsulated.num_workers, encapsulated.trainer.num_workers) == (5, 5)


@row("`n_epocs_sync=0`")
@CLASSES
@pytest.mark.parametrize("fit", ["fit_synchronous_every_n_epochs_with_GPU", "fit_asynchronous_n_epochs_with_GPU"])
def test_no_epochs_between_merges_is_one_merge(made, fit):
    encapsulated = made(num_workers=2)
    getattr(encapsulated, fit)(X, Y, 3, 4, n_epocs_sync=0, progress=False)
    assert len(encapsulated.trainer.history) == 1


@row("state of the optimizer")
@CLASSES
def test_optimizer_states_stay_or_are_made_anew(made):
    x, y = rows_of(60)
    for kept in (True, False):  # by default it is made anew for each block, here the only one
        encapsulated = made()
        options = {"merge": Merge(optimizer_state="keep")} if kept else {}
        encapsulated.fit_synchronous_with_GPU(x, y, 3, 2, **ORDERED, **options)
        assert_same_bits(arrays(encapsulated), plain_loop(kept=kept, like=made))


def plain_loop(*, kept, like):
    """Train two epochs of three batches; the optimizer keeps its state, or is new in each epoch."""
    net, loss = (mlp(), nn.CrossEntropyLoss()) if like is pytorch else (softmax(mlp()), categorical_cross_entropy)
    for epoch in range(2):
        if epoch == 0 or not kept:
            optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for images, labels in zip(whole(X).float().chunk(3), whole(Y).chunk(3), strict=True):
            optimizer.zero_grad()
            loss(net(images), labels).backward()
            optimizer.step()
    return state_arrays(net if like is pytorch else net[0])


@row("samples of a block")
@CLASSES
def test_every_sample_is_trained(made):
    x, y = rows_of(17, 13)
    encapsulated = made(num_workers=2)
    encapsulated.fit_synchronous_with_GPU(x, y, 4, 1, progress=False)
    assert encapsulated.trainer.history[0]["samples"] == 30


@row("mean of the workers")
@CLASSES
@pytest.mark.filterwarnings("ignore:3 workers share 2 blocks")
def test_the_mean_is_weighted_by_samples(made):
    blocks = (30, 10)
    x, y = rows_of(*blocks)
    three = made(num_workers=3)  # one has no block, and no vote
    three.fit_synchronous_with_GPU(x, y, 2, 1, **ORDERED)
    parts = []
    for number in range(2):
        alone = made()
        alone.fit_synchronous_with_GPU(*(BlockedTensor([each.tensors[number]]) for each in (x, y)), 2, 1, **ORDERED)
        parts.append(arrays(alone))
    mean = {name: (30 * parts[0][name] + 10 * parts[1][name]) / 40 for name in parts[0]}
    assert_close(arrays(three), mean, 1e-6)


@row("asynchronous merges")
@CLASSES
def test_halving_is_a_keyword(made):
    base, moved = arrays(made()), made()
    moved.fit_synchronous_with_GPU(X, Y, 3, 1, **ORDERED)
    for rule, share in (("weighted", 1.0), ("halving", 0.5)):
        encapsulated = made()
        encapsulated.fit_asynchronous_with_GPU(X, Y, 3, 1, merge=Merge(rule=rule), **ORDERED)
        expected = {name: base[name] + share * (arrays(moved)[name] - base[name]) for name in base}
        assert_close(arrays(encapsulated), expected, 1e-6)


@row("`fit_asynchronous_with_GPU`")
@CLASSES
def test_asynchronous_workers_merge_every_epoch_or_every_block(made):
    encapsulated = made()
    encapsulated.fit_asynchronous_with_GPU(X, Y, 3, 2, progress=False)
    assert len(encapsulated.trainer.history) == 2
    options = {"merge": Merge("commutative", unit="blocks"), "progress": False}
    encapsulated.fit(X, Y, num_epochs=2, num_batches_per_worker=3, **options)
    assert len(encapsulated.trainer.history) == 2 + 2 * 4


@row("total shuffle")
@CLASSES
def test_a_total_shuffle_mixes_all_blocks(made):
    x, y = rows_of(20, 20, 20)
    encapsulated = made(transform=keep)
    KEPT.clear()
    encapsulated.fit_synchronous_shuffle_with_GPU(x, y, 1, 1, progress=False)
    numbers = {sample.numpy().tobytes(): number for number, sample in enumerate(x.collect().float())}
    blocks = [sorted({numbers[sample.numpy().tobytes()] // 20 for sample in batch}) for batch in KEPT]
    assert blocks == [[0, 1, 2]] * 3


KEPT = []


def keep(batch):
    """A transform that keeps what it gets; tasks run in this process."""
    KEPT.append(batch.float())
    return batch.float()


@row("type of x")
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


@row("a failing task")
@CLASSES
def test_exceptions_of_the_network_reach_the_script(made):
    class Broken(nn.Linear):
        def forward(self, x):
            raise ZeroDivisionError("in forward")

    with pytest.raises(ZeroDivisionError, match="in forward"):
        made(Broken(6, 3)).fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)


@row("history, evaluation, prediction, seed")
@CLASSES
def test_the_trainer_has_the_rest(made):
    encapsulated = made()
    encapsulated.fit_synchronous_with_GPU(X, Y, 3, 2, progress=False)
    assert len(encapsulated.trainer.history) == 2
    assert encapsulated.trainer.evaluate(X, Y)["loss"] > 0
    assert encapsulated.trainer.predict(X).shape == (60, 3)
    assert encapsulated.trainer.seed == 3


# The numbers of dislib.eddl


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
    whole, scaled = built(SGD), of_trainer(SGD, transform=by_255)
    assert whole.trainer.evaluate(X, Y) == scaled.evaluate(X, Y)
    np.testing.assert_array_equal(whole.trainer.predict(X), scaled.predict(X))
    net = mlp()
    unscaled = DistributedTrainer(1, engine="serial", seed=3, threads=1)
    unscaled.build(
        net, {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}, nn.CrossEntropyLoss(), transform=torch.Tensor.float
    )
    assert_same_bits(fitted(pytorch(net)), fitted(unscaled))


@row("`cross_entropy`, `ce`, `softmax_cross_entropy`")
@pytest.mark.parametrize("loss", ["cross_entropy", "ce", "softmax_cross_entropy"])
def test_cross_entropies_take_probabilities(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = fitted(built(SGD, loss))
    assert_same_bits(ours, fitted(built(SGD, "categorical_cross_entropy")))
    # The gradient with respect to what goes into the softmax is that of EDDL: (output - target) / samples.
    logits = torch.randn(8, 3, requires_grad=True, generator=torch.Generator().manual_seed(1))
    target = torch.eye(3)[torch.arange(8) % 3]
    EDDL_LOSSES[loss](logits.softmax(1), target).backward()
    torch.testing.assert_close(logits.grad, (logits.detach().softmax(1) - target) / 8)
    with pytest.raises(
        ValueError, match=r"not probabilities; end the network with a softmax, or use .*CrossEntropyLoss"
    ):
        fitted(built(SGD, loss, net=mlp()), epochs=1)
    fitted(built({"optimizer": "sgd", "lr": 1.0}, nn.CrossEntropyLoss(), net=mlp()))
    with pytest.warns(UserWarning, match="the loss takes logits"):
        fitted(pytorch(softmax(mlp())))


NUMBERS = {
    "rho": {"rmsprop": 0.9, "adadelta": 0.9},
    "epsilon": {"adam": 1e-6, **dict.fromkeys(("rmsprop", "adagrad", "adamax", "adadelta", "nadam"), 1e-5)},
    "schedule_decay": {"nadam": 0.0},
}
CASES = [(name, optimizer, number) for name, own in NUMBERS.items() for optimizer, number in own.items()]


@row("`rho` of rmsprop and adadelta")
@row("`epsilon`")
@row("`schedule_decay` of nadam")
@pytest.mark.parametrize(("name", "optimizer", "number"), CASES)
def test_optimizers_have_the_numbers_of_dislib(name, optimizer, number):
    spec = {"optimizer": optimizer, "lr": 0.05}
    own = {each: by_optimizer[optimizer] for each, by_optimizer in NUMBERS.items() if optimizer in by_optimizer}
    assert own == OPTIMIZER_DEFAULTS[optimizer]
    assert own[name] == number
    ours = fitted(built(spec))
    assert_same_bits(ours, fitted(of_trainer({**spec, **own}, transform=by_255)))
    other = {name: number / 2 + 1e-3}
    assert_same_bits(
        fitted(built({**spec, **other})), fitted(of_trainer({**spec, **own, **other}, transform=by_255))
    )


def test_the_class_for_torch_leaves_the_numbers_to_torch():
    made = EncapsulatedFunctionsDistributedPytorch(1, engine="serial", seed=3, threads=1)
    made.build(mlp(), optim.RMSprop, nn.CrossEntropyLoss, {"lr": 0.01})
    trainer = DistributedTrainer(1, engine="serial", seed=3, threads=1)
    options = {"transform": torch.Tensor.float}
    trainer.build(mlp(), lambda parameters: optim.RMSprop(parameters, lr=0.01), nn.CrossEntropyLoss(), **options)
    assert_same_bits(fitted(made), fitted(trainer))


@row("`weight_decay`")
def test_a_weight_decay_is_not_passed_over_in_silence():
    decayed = {**SGD, "weight_decay": 0.25}
    with pytest.warns(
        UserWarning, match=r"weight_decay=0.25 is torch's.*schedule=lambda epoch: .* else 1 / 1.25\)"
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
    for spec in ({**SGD, "momentum": 0.9, "nesterov": True}, {"optimizer": "adam", "lr": 0.5, "amsgrad": True}):
        assert_same_bits(
            fitted(built(spec)),
            fitted(of_trainer({**OPTIMIZER_DEFAULTS.get(spec["optimizer"], {}), **spec}, transform=by_255)),
        )


@row("mean of squares of rmsprop")
def test_rmsprop_keeps_a_running_mean():
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    x, y = Tensor(np.full((3, 2), 255.0), (1, 1)), Tensor(np.array([[1.0], [2.0], [3.0]]), (1, 1))
    made = built({"optimizer": "rmsprop", "lr": 0.1}, lambda output, target: (output * target).sum(), net=net)
    (ours,) = fitted(made, x, y, epochs=1).values()
    expected, mean = 0.0, 0.0
    for gradient in (1.0, 2.0, 3.0):
        mean = 0.9 * mean + 0.1 * gradient**2
        expected -= 0.1 * gradient / (mean**0.5 + 1e-5)
    np.testing.assert_allclose(ours, [[expected] * 2], rtol=1e-5)


@row("adagrad, adamax, adadelta, nadam")
@pytest.mark.parametrize("optimizer", ["adagrad", "adamax", "adadelta", "nadam"])
def test_these_optimizers_train(optimizer):
    before = state_arrays(softmax(mlp()))
    for lr, changed in ((0.5, True), (0.0, False)):
        trained = fitted(built({"optimizer": optimizer, "lr": lr}))
        assert all((trained[name] != before[name]).any() == changed for name in before)


@row("gradient of `mean_squared_error`")
@row("gradient of `binary_cross_entropy`")
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_a_learning_rate_gives_the_gradients_of_eddl(loss):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 3), nn.Sigmoid())
    factor = {"mse": 3 / 2, "bce": 3}[loss]
    x, y = whole(X).float(), whole(Y).float()
    with torch.no_grad():
        output = net(x / 255)
    delta = output - y  # of EDDL's losses, with respect to the outputs
    if loss == "bce":
        delta = delta / (output * (1 - output))
    through = delta * output * (1 - output) / 60
    expected = net[0].weight.detach() - 0.1 * through.T @ (x / 255)
    made = built({"optimizer": "sgd", "lr": 0.1 * factor}, loss, net=net)
    made.fit_synchronous_with_GPU(x, y, 1, 1, **ORDERED)
    np.testing.assert_allclose(made.model_parameters[0][0], expected, rtol=0, atol=1e-6)


@row("shapes of the result")
def test_results_have_the_shapes_of_torch():
    made = built(SGD)
    made.fit_synchronous_with_GPU(X, Y, 3, 1, progress=False)
    assert [[array.shape for array in layer] for layer in made.get_parameters()] == [
        [(16, 6), (16,)],
        [],
        [(3, 16), (3,)],
        [],
    ]


def test_each_row_of_the_tables_has_a_test():
    tables = re.findall(r"^\| \| .*\n\|---.*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    rows = [line.split(" | ")[0].removeprefix("| ") for table in tables for line in table.splitlines()]
    assert sorted(rows) == sorted(HELD)
