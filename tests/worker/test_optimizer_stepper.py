"""Clipping, accumulation and batches that are not finite: the plain PyTorch loop's bits, and nothing dropped."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DivergedError, Gradients, Merge, PartialShuffle
from compss_train.engines.calls import intra_op_threads
from compss_train.model.losses import cross_entropy
from compss_train.model.metrics import Measures, MetricAccumulator
from compss_train.model.training_spec import HALF, TrainingSpec
from compss_train.worker.batches import Batch
from compss_train.worker.optimizer_stepper import OptimizerStepper
from tests.helpers.models import (
    ADAM,
    MODES,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.small_fits import trainer_of
from tests.helpers.tolerances import adam_error, loss_error, sgd_error, sum_error
from tests.model.lr_schedules.schedulers import Notes, Noting

X, Y = classification(samples=62)
IN_ORDER = {"shuffle": None, "shuffle_block_data": False}
BLOCKS, BATCHES, EPOCHS = 4, 2, 2


def norm_clipped(net):
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)


def value_clipped(net):
    nn.utils.clip_grad_value_(net.parameters(), 0.02)


def cut(samples):
    return [batch for block in np.array_split(samples, BLOCKS) for batch in np.array_split(block, BATCHES)]


def plain_loop(net, make_optimizer, clip, accumulate=1, precision="fp32"):
    """Train as anybody would who accumulates gradients, until the end of an epoch at most."""
    net = copy.deepcopy(net)
    optimizer = make_optimizer(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    torch.manual_seed(3)
    with intra_op_threads(1):
        for _ in range(EPOCHS):
            batches = list(zip(cut(X), cut(Y), strict=True))
            for first in range(0, len(batches), accumulate):
                together = batches[first : first + accumulate]
                optimizer.zero_grad()
                for x, y in together:
                    with torch.autocast("cpu", HALF.get(precision), enabled=precision in HALF):
                        loss = cross_entropy(net(torch.from_numpy(x).clone()), torch.from_numpy(y))
                    scaler.scale(loss if accumulate == 1 else loss * len(x)).backward()
                scaler.unscale_(optimizer)
                if accumulate > 1:
                    for parameter in net.parameters():
                        parameter.grad /= sum(len(x) for x, _ in together)
                clip(net)
                scaler.step(optimizer)
                scaler.update()
    return state_arrays(net)


def built(engine="serial", workers=1, net=awkward_net, optimizer=SGD, loss="cross_entropy", **options):
    return trainer_of(engine, workers, seed=3, net=net, optimizer=optimizer, loss=loss, metric=None, **options)


def fitted(trainer, **options):
    return trainer.fit(
        *blocked(X, Y, BLOCKS), num_epochs=EPOCHS, num_batches_per_worker=BATCHES, **IN_ORDER, **options
    )


def unclipped(net):
    pass


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("clip", "clipped"),
    [
        ({}, unclipped),
        ({"clip_norm": 0.5}, norm_clipped),
        ({"clip_value": 0.02}, value_clipped),
    ],
    ids=["not clipped", "norm", "value"],
)
def test_one_worker_is_the_plain_loop(clip, clipped, precision, accumulate):
    """8 batches an epoch: the last step of each is of two."""
    for on_nan in ("raise", "skip", "ignore"):  # where all is finite, it is all the same
        gradients = Gradients(**clip, accumulate=accumulate, on_nan=on_nan)
        trainer = built(gradients=gradients, precision=precision)
        optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        plain = plain_loop(awkward_net(), optimizer, clipped, accumulate, precision)
        assert_same_bits(fitted(trainer), plain)
        assert "skipped_batches" not in trainer.history[0]
    if clip:
        large = fitted(built(precision=precision, gradients=Gradients(accumulate=accumulate)))
        assert not np.array_equal(large["0.weight"], plain["0.weight"])


@pytest.mark.parametrize("mode", MODES[1:3], ids=str)
def test_one_worker_learns_the_same_in_rounds_of_any_length(mode):
    options = {"gradients": Gradients(clip_norm=0.5, accumulate=3), "optimizer": ADAM}
    assert_same_bits(fitted(built(**options), **mode), fitted(built(**options)))


def test_untrained_parameters_are_not_in_the_norm():
    def last_layer(parameters):
        return torch.optim.SGD(list(parameters)[-1:], lr=0.05)

    def clipped(net):
        nn.utils.clip_grad_norm_(net[2].bias, 0.1)

    ours = fitted(built(net=mlp, optimizer=last_layer, gradients=Gradients(clip_norm=0.1)))
    assert_same_bits(ours, plain_loop(mlp(), last_layer, clipped))


# Accumulation


def learnt(sizes, accumulate, optimizer=torch.optim.SGD):
    """Train on batches of these sizes, one after the other, in double precision."""
    net = mlp().double()
    training_spec = TrainingSpec(
        net=net,
        optimizer=torch.optim.SGD,
        loss=cross_entropy,
        gradients=Gradients(accumulate=accumulate),
    )
    replica = training_spec.replica(state_arrays(net), "cpu", training=True)
    stepper = OptimizerStepper(replica, optimizer(replica.training_spec.net.parameters(), lr=0.5))
    accumulator = MetricAccumulator(Measures())
    for x, y in zip(torch.from_numpy(X).double().split(sizes), torch.from_numpy(Y).split(sizes), strict=True):
        stepper.learn(Batch(x, y), accumulator)
    stepper.finish()
    stepper.finish()  # there is nothing left
    return state_arrays(replica.training_spec.net), accumulator.measured()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_several_batches_are_one_of_all_their_samples(optimizer):
    parts, measured = learnt([1, 20, 10, 7, 8, 16], 3, optimizer)
    whole, expected = learnt([31, 31], 1, optimizer)
    error = adam_error if optimizer is torch.optim.Adam else sgd_error
    assert_close(parts, whole, error(np.float64, 2, 0.5, samples=31))
    assert measured.loss == pytest.approx(expected.loss, abs=62 * loss_error(np.float64, 62))
    assert (measured.samples, measured.batches) == (62, 6)


def test_batches_that_are_left_over_make_a_smaller_step():
    assert_close(learnt([10, 20, 30, 2], 3)[0], learnt([60, 2], 1)[0], sgd_error(np.float64, 2, 0.5, samples=62))
    assert_close(learnt([10, 52], 9)[0], learnt([62], 1)[0], sgd_error(np.float64, 1, 0.5, samples=62))


def total(output, target):
    return output.sum() / len(output)


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ({}, [3, 3, 3]),  # 9 batches an epoch
        ({"merge": Merge(every=0)}, [3, 3, 3]),
        ({"merge": Merge(unit="blocks")}, [1, 1, 1] * 3),
        ({"shuffle": PartialShuffle(), "merge": Merge(every=2)}, [3, 3, 3]),
    ],
)
def test_a_step_ends_with_the_epoch_and_with_the_round(way, steps):
    notes = Notes()

    def optimizer(parameters):
        return Noting(parameters, notes, lr=1e-3, momentum=0.0)

    net = nn.Linear(1, 1)
    trainer = trainer_of(
        workers=1,
        net=lambda: net,
        optimizer=optimizer,
        loss=total,
        metric=None,
        gradients=Gradients(accumulate=9 if way.get("merge") == Merge(unit="blocks") else 4),
    )
    x = np.ones((45, 1), np.float32)
    final = trainer.fit(*blocked(x, x, 3), num_epochs=3, num_batches_per_worker=3, **way)
    assert len(notes) == sum(steps)
    # Of means, however many. A step is that times 1e-3, and rounds a weight of less than 1.
    assert [gradient for *_, gradient in notes] == pytest.approx([1.0] * len(notes), rel=sum_error(np.float32, 15))
    step = sum_error(np.float32, 1) + 1e-3 * sum_error(np.float32, 15)
    assert final["weight"].item() == pytest.approx(net.weight.item() - 1e-3 * len(notes), abs=step * len(notes))


# Batches that are not finite


class Spoilt(nn.Module):
    """Only its gradient is not finite where a target is 99, and only its value where one is 96."""

    def forward(self, output, target):
        bad = torch.where(target == 99, 0.0, 1.0)
        constant = torch.where(target == 96, float("inf"), 0.0).sum()
        return cross_entropy(output, target % 3) + constant + 0 * (output[:, 0] * bad).pow(2).sqrt().sum()


def spoilt(batch, how):
    """Return the data with one of the batches of 5 that is not finite."""
    x, y = X[:60].copy(), Y[:60].copy()
    if how in ("gradient", "loss"):
        y[batch * 5] = {"gradient": 99, "loss": 96}[how]
    else:
        x[batch * 5] = float(how)
    return x, y


def without(batch):
    kept = np.r_[0 : batch * 5, (batch + 1) * 5 : 60]
    return X[kept], Y[kept]


def skipping(data, optimizer=SGD, precision="fp32", **gradients):
    given = {"gradients": Gradients(on_nan="skip", **gradients), "precision": precision}
    trainer = built(optimizer=optimizer, loss=Spoilt(), net=normed, **given)
    return trainer, trainer.fit(*data, num_epochs=2, batch_size=5, **IN_ORDER)


def normed():
    net = awkward_net()
    net[3].p = 0.0  # what a skipped batch draws is not drawn again
    return net


@pytest.mark.parametrize("how", ["nan", "inf", "gradient", "loss"])
@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 0),
        ({}, 5),
        ({}, 11),
        ({"optimizer": ADAM, "clip_norm": 0.5}, 5),
        ({"precision": "bf16"}, 11),
    ],
    ids=str,
)
def test_a_batch_that_is_skipped_leaves_nothing_behind(batch, how, options):
    trainer, ours = skipping(spoilt(batch, how), **options)
    other, theirs = skipping(without(batch), **options)
    assert_same_bits(ours, theirs)
    for record, expected in zip(trainer.history, other.history, strict=True):
        assert record["loss"] == expected["loss"]
        assert (record["skipped_batches"], record["workers"][0]["skipped_batches"]) == (1, 1)
        assert (record["samples"], record["workers"][0]["samples"]) == (60, 55)  # given, and learnt from
        assert "skipped_batches" not in expected


@pytest.mark.parametrize("batch", [0, 4, 11])
@pytest.mark.parametrize("how", ["nan", "gradient"])
def test_only_one_of_several_batches_a_step_is_skipped(batch, how):
    """With the epoch's last batch skipped, the last step is of one less; with another, batches move up."""
    _, ours = skipping(spoilt(batch, how), accumulate=3)
    assert_same_bits(ours, skipping(without(batch), accumulate=3)[1])


class Buffers(nn.Module):
    """A buffer by two names until the first forward pass, which replaces it by one of them, and a sum of inputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("one", torch.zeros(1))
        self.register_buffer("other", self.one)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.one = self.one + 1
        self.other += 1
        self.seen = self.seen + x.sum()
        return self.linear(x)


@pytest.mark.parametrize("batch", [0, 3])
def test_buffers_are_put_back_after_a_skipped_batch(batch):
    trainer = built(net=Buffers, gradients=Gradients(on_nan="skip"))
    final, (x, _) = trainer.fit(*spoilt(batch, "nan"), num_epochs=1, batch_size=5, **IN_ORDER), without(batch)
    assert (final["one"].item(), final["other"].item()) == (11, 11)
    assert final["seen"].item() == pytest.approx(x.sum(), abs=sum_error(np.float32, x.size, np.abs(x).sum()))


def test_who_skipped_what_is_told():
    x, y = spoilt(2, "nan")
    x[25] = np.nan  # of the other half
    x[35] = np.nan
    trainer = built(workers=2, gradients=Gradients(on_nan="skip"))
    trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, **IN_ORDER)
    (record,) = trainer.history
    assert record["skipped_batches"] == 3
    assert [worker["skipped_batches"] for worker in record["workers"]] == [2, 1]
    x[25] = 0
    x[10] = 0
    trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, **IN_ORDER)
    assert ["skipped_batches" in worker for worker in trainer.history[1]["workers"]] == [False, True]


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_worker_that_skips_everything_ends_the_fit(merge):
    x, y = X.copy(), Y
    x[31:] = np.nan
    trainer = built(workers=2, gradients=Gradients(on_nan="skip"), net=mlp)
    good = trainer.get_parameters()
    with pytest.raises(DivergedError, match=r"in all 7 batches of round 0 on worker 1, .* nothing was learnt"):
        trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, merge=merge, **IN_ORDER)
    assert_same_bits(trainer.get_parameters(), good)


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_last_step_that_leads_to_infinity_is_never_merged(merge, on_nan):
    trainer = built(
        workers=2, gradients=Gradients(on_nan=on_nan), net=mlp, optimizer={"optimizer": "sgd", "lr": 1e38}
    )
    before = trainer.get_parameters()
    with pytest.raises(DivergedError, match=r"parameter '0.weight' became NaN or infinite in round 0 on worker 0"):
        trainer.fit(*blocked(X * 1e3, Y, 2), num_epochs=1, num_batches_per_worker=1, merge=merge, progress=False)
    assert_same_bits(trainer.get_parameters(), before)


def test_ignored_values_that_are_not_finite_are_trained_on():
    trainer = built(gradients=Gradients(on_nan="ignore"))
    final = trainer.fit(*spoilt(3, "nan"), num_epochs=2, batch_size=5, validation_data=(X, Y), **IN_ORDER)
    assert all(np.isnan(record["loss"]) and np.isnan(record["val_loss"]) for record in trainer.history)
    assert np.isnan(final["0.weight"]).all()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3, sparse=True)

    def forward(self, x):
        return self.table(x[:, 0].abs().long().clamp(max=2))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_sparse_gradients_are_skipped_and_accumulated_too(accumulate):
    sgd = {"optimizer": "sgd", "lr": 0.5}
    results = []
    for net in (Sparse(), Sparse()):
        net.table.sparse = not results
        net.load_state_dict({"table.weight": torch.ones(3, 3)})
        trainer = built(
            net=lambda net=net: net, optimizer=sgd, gradients=Gradients(accumulate=accumulate, on_nan="skip")
        )
        results.append(trainer.fit(X, Y, num_epochs=2, batch_size=5, **IN_ORDER))
    steps = 2 * len(X) // 5 + 2  # those of a row of the table make its weights larger, up to 2
    assert_close(*results, sgd_error(np.float32, steps, 0.5, samples=5 * accumulate, weight=2.0))
