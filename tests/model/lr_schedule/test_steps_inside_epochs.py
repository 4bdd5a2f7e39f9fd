"""Schedules that are stepped several times an epoch, at fractions of each worker's batches."""

import copy
from collections import Counter
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from compss_train import BufferSpec, DistributedTrainer, Merge, PartialShuffle, Schedule
from compss_train.engines.calls import intra_op_threads
from tests.helpers.cases import each_value
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.notes import Notes
from tests.helpers.small_fits import combined
from tests.model.lr_schedule.schedulers import SCHEDULERS, Noting, fall

X, Y = classification(samples=62)
SIZES = [len(part) for block in np.array_split(X, 4) for part in np.array_split(block, 3)]
BATCHES = len(SIZES)
WAYS = [
    {},
    {"merge": Merge(every=0)},
    {"merge": Merge(unit="blocks")},
    {"merge": Merge(every=3, unit="blocks")},
    {"merge": Merge(unit="batches")},
    {"merge": Merge(every=5, unit="batches")},
]


SCHEDULES = {
    "function": (
        fall,
        lambda steps: partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: fall(step / steps)),
    ),
    "warm-up": (
        lambda epoch: min(1.0, (epoch + 0.25) / 1.5),
        lambda steps: partial(
            lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, (step / steps + 0.25) / 1.5)
        ),
    ),
    "one cycle": (
        partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=50),
        lambda _: partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=50),
    ),
}


SCHEDULES |= {
    f"torch's {name}": (scheduler, lambda _, s=scheduler: s)
    for name, scheduler in SCHEDULERS.items()
}
PLAIN = {
    "sgd": (SGD, partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    "adam": (ADAM, partial(torch.optim.Adam, lr=0.01)),
}


def plain_loop(make_optimizer, make_scheduler, steps, epochs):
    """Train as anybody would; returns the parameters, and the learning rate of each batch."""
    net = copy.deepcopy(awkward_net())
    lrs = []
    optimizer = make_optimizer(net.parameters())
    scheduler = make_scheduler(optimizer)
    torch.manual_seed(3)
    stepped = 0
    batches = [
        pair
        for x, y in zip(np.array_split(X, 4), np.array_split(Y, 4), strict=True)
        for pair in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True)
    ]
    with intra_op_threads(1):
        for number, (x, y) in enumerate(batches * epochs):
            while stepped < number * steps // BATCHES:
                scheduler.step()
                stepped += 1
            lrs.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                net(torch.from_numpy(x.copy())), torch.from_numpy(y.copy())
            ).backward()
            optimizer.step()
    return state_arrays(net), lrs


def built(engine, workers, schedule, steps, optimizer=SGD, net=awkward_net):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(net(), optimizer, "cross_entropy", schedule=Schedule(schedule, steps=steps))
    return trainer


CASES = [
    *((name, 1, "sgd") for name in SCHEDULES),
    *(
        (name, steps, "sgd")
        for name in ("function", "warm-up", "one cycle")
        for steps in (4, 5, 12)
    ),
    ("one cycle", 1, "adam"),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
@pytest.mark.filterwarnings(
    "ignore:Detected call of `lr_scheduler.step", "ignore:schedule= is a OneCycleLR"
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # of SequentialLR in torch 2.6
def test_one_worker_is_the_plain_loop_with_its_steps(number):
    name, steps, optimizer = CASES[number]
    schedule, scheduler = SCHEDULES[name]
    spec, make_optimizer = PLAIN[optimizer]
    expected, lrs = plain_loop(make_optimizer, scheduler(steps), steps, 3)
    trainer = built("serial", 1, schedule, steps, spec)
    options = {
        "shuffle": None,
        "shuffle_block_data": False,
        "num_batches_per_worker": 3,
        "num_epochs": 3,
    }
    assert_same_bits(
        trainer.fit(*blocked(X, Y, 4), **combined(options, WAYS[number % len(WAYS)])), expected
    )
    if BATCHES % steps == 0:  # else a step begins in the middle of the last batch
        trained = np.cumsum([record["samples"] for record in trainer.history])
        last = np.searchsorted(np.cumsum(SIZES * 3), trained)
        assert [record["lr"] for record in trainer.history] == [lrs[number] for number in last]


def test_what_makes_no_sense_is_an_error(raises):
    plateau = lr_scheduler.ReduceLROnPlateau
    for schedule, steps, name in (
        (fall, 0, "steps=0"),
        (plateau, 4, "Schedule(steps=4"),
        (lambda epoch: -epoch, 4, "learning rate to -0.0125"),
    ):
        with raises(ValueError, name):
            built("serial", 1, schedule, steps).fit(X, Y, num_epochs=1, batch_size=5)


IN_ORDER = {"shuffle": None, "shuffle_block_data": False, "num_batches_per_worker": 2}


def scheduled(engine, workers, schedule, optimizer=SGD, net=awkward_net):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(net(), optimizer, "cross_entropy", schedule=schedule)
    return trainer


@pytest.mark.filterwarnings("ignore:schedule= is a OneCycleLR of 6 steps, and the fit ends after 1")
def test_a_second_fit_continues_counting_epochs():
    whole, parts = (scheduled("serial", 1, SCHEDULERS["one cycle"]) for _ in range(2))
    expected = whole.fit(*blocked(X, Y, 4), num_epochs=5, **IN_ORDER)
    for epochs in (1, 2, 2):
        ours = parts.fit(*blocked(X, Y, 4), num_epochs=epochs, **IN_ORDER)
    assert_same_bits(ours, expected)
    assert [record["lr"] for record in parts.history] == [record["lr"] for record in whole.history]
    # Begins anew.
    parts.build(awkward_net(), SGD, "cross_entropy", schedule=SCHEDULERS["one cycle"])
    assert_same_bits(parts.fit(*blocked(X, Y, 4), num_epochs=5, **IN_ORDER), expected)


# One clock. The gradient is the number of samples, so that those that a learning rate was used for
# can be counted.

NUMBERS = np.ones((48, 1), np.float32)
MERGINGS = [
    {},
    {"merge": Merge(every=2)},
    {"merge": Merge(every=0)},
    {"merge": Merge(unit="blocks")},
    {"merge": Merge(every=2, unit="blocks")},
    {"shuffle": "total", "merge": Merge(every=0)},
    {"shuffle": PartialShuffle(), "merge": Merge(every=0)},
    {"shuffle": PartialShuffle(), "merge": Merge(unit="blocks")},
    {"buffer": BufferSpec("FIFO", 16), "merge": Merge(every=0)},
    {"buffer": BufferSpec("FIRO", 16, threshold=8), "merge": Merge(every=2)},
    {"merge": Merge(every=2, optimizer_state="reset")},
    {"merge": "commutative"},
    {"merge": Merge("commutative", every=0)},
]


def total(output, target):
    return output.sum()


def one_weight():
    net = nn.Linear(1, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


@pytest.mark.parametrize(("way", "workers"), each_value(MERGINGS, [5, 1]), ids=str)
def test_the_clock_is_the_epoch_for_any_number_of_workers(workers, way):
    notes = Notes()

    def optimizer(parameters):
        weight, bias = parameters
        groups = [{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.25, "momentum": 0.0}]
        return Noting(groups, notes, lr=1.0, momentum=0.5)

    trainer = DistributedTrainer(workers, engine="serial", seed=0, threads=1)
    trainer.build(one_weight(), optimizer, total, schedule=lambda epoch: 1 / (epoch + 1))
    for _ in range(2):
        trainer.fit(*blocked(NUMBERS, NUMBERS, 6), num_epochs=3, num_batches_per_worker=3, **way)
    used = Counter()
    for group, lr, momentum, samples in notes:
        used[group, lr, momentum] += samples
    expected = {(0, 0.5, 0.5): 48, (1, 0.25, 0.0): 48}
    assert used == {(g, lr / (e + 1), m): n for (g, lr, m), n in expected.items() for e in range(6)}
    assert [record["lr"] for record in trainer.history] == [
        0.5 / record["epoch"] for record in trainer.history
    ]


@pytest.mark.parametrize(
    "merge", ["synchronous", Merge("commutative", quorum=0), "parameter_server"], ids=str
)
@pytest.mark.parametrize(
    "way",
    [{"merge": Merge(every=1)}, {"merge": Merge(every=2)}, {"merge": Merge(unit="blocks")}],
    ids=str,
)
def test_other_engines_and_merges_have_the_same_clock(engine, merge, way):
    """Every worker has half of the samples, whose steps add up: what is merged is half of all that
    was done.
    """
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    sgd = {"optimizer": "sgd", "lr": 1.0}
    trainer.build(one_weight(), sgd, total, schedule=lambda epoch: 0.5**epoch)
    final = trainer.fit(
        NUMBERS, NUMBERS, num_epochs=4, num_batches_per_worker=3, **combined(way, merge=merge)
    )
    assert final["weight"].item() == -48 / 2 * (1 + 1 / 2 + 1 / 4 + 1 / 8)


@pytest.mark.parametrize("batches", [{"batch_size": 7}, {"num_batches_per_worker": 4}])
def test_steps_by_batches_are_those_of_a_plain_loop(batches):
    x, y = classification()
    cuts = [*range(0, len(x), 7), len(x)] if "batch_size" in batches else [0, 15, 30, 45, 60]
    parts = np.array_split(np.arange(len(x)), len(cuts) - 1)
    epochs = 3
    steps = 3 * len(parts)

    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=steps + 1)

    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), SGD, "cross_entropy", schedule=Schedule(one_cycle, unit="batches"))
    keep = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    trained = trainer.fit(x, y, num_epochs=epochs, **batches, **keep)
    net = mlp()
    rates = []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = one_cycle(optimizer)
    with intra_op_threads(1):
        for part in parts * epochs:
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                net(torch.from_numpy(x[part])), torch.from_numpy(y[part])
            ).backward()
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    assert_same_bits(trained, state_arrays(net))
    assert [record["lr"] for record in trainer.history] == rates[len(parts) - 1 :: len(parts)]


@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_a_schedule_that_is_much_longer_than_the_fit_is_told(method):
    x, y = classification()
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    one_cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=18)
    trainer.build(mlp(), SGD, "cross_entropy", schedule=one_cycle)
    message = (
        "OneCycleLR of 18 steps, and the fit ends after 3, as it is stepped once an "
        "epoch: .*unit='batches'"
    )
    with pytest.warns(UserWarning, match=message):
        getattr(trainer, method)(x, y, num_epochs=3, batch_size=10, progress=False)
    with pytest.raises(ValueError, match="unit='batches' sets the number of steps"):
        Schedule(one_cycle, steps=2, unit="batches")


def one_cycle_of(steps):
    return partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=steps)


def linear_to_0(steps):
    return partial(
        torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: max(0.0, 1 - step / steps)
    )


@pytest.mark.parametrize("method", ["fit", "check_fit"])
@pytest.mark.parametrize("kind", [one_cycle_of, linear_to_0])
@pytest.mark.filterwarnings("error")
def test_a_schedule_of_one_workers_batches_is_told_that_workers_share_them(method, kind):
    """As long as ``num_epochs * len(loader)``, it would end this fit in its middle."""
    x, y = classification()
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    for steps in (18, 9, 90):
        trainer.build(mlp(), SGD, "cross_entropy", schedule=Schedule(kind(steps), unit="batches"))
        advice = "divide its length by 2" if steps == 18 else "give it as many steps as the fit has"
        message = (
            f"LR of {steps} steps, and the fit ends after 9, as it is stepped 3 times an "
            f"epoch: {advice}"
        )
        # Functions are asked up to a worker's batches.
        told = steps == 18 or (steps == 90 and kind is one_cycle_of)
        with pytest.warns(UserWarning, match=message) if told else nullcontext():
            getattr(trainer, method)(x, y, num_epochs=3, batch_size=10, progress=False)


@pytest.mark.parametrize("method", ["fit", "check_fit"])
@pytest.mark.parametrize(
    "factor", [lambda step: 1 - step / 9, [1.0, *[0.1] * 8].__getitem__], ids=["line", "list"]
)
@pytest.mark.filterwarnings("error")
def test_a_function_that_has_factors_for_the_steps_of_the_fit_only_is_enough(method, factor):
    """After them, one becomes negative, and the other fails."""
    x, y = classification()
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), SGD, "cross_entropy", schedule=Schedule(factor, unit="batches"))
    getattr(trainer, method)(x, y, num_epochs=3, batch_size=10, progress=False)
