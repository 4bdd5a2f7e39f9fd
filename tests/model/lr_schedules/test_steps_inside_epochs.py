"""Schedules that are stepped several times an epoch, at fractions of each worker's batches."""

import copy
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from compss_train import BufferSpec, DistributedTrainer, Merge, PartialShuffle, Schedule
from compss_train.callbacks import Checkpoint
from compss_train.engines.calls import intra_op_threads
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.schedule import make_schedule
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
from tests.helpers.small_fits import combined
from tests.model.lr_schedules.schedulers import SCHEDULERS, Notes, Noting, fall

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
    "function": (fall, lambda steps: partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: fall(step / steps))),
    "warm-up": (
        lambda epoch: min(1.0, (epoch + 0.25) / 1.5),
        lambda steps: partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, (step / steps + 0.25) / 1.5)),
    ),
    "one cycle": (
        partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=50),
        lambda _: partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=50),
    ),
}


SCHEDULES |= {f"torch's {name}": (scheduler, lambda _, s=scheduler: s) for name, scheduler in SCHEDULERS.items()}
PLAIN = {
    "sgd": (SGD, partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    "adam": (ADAM, partial(torch.optim.Adam, lr=0.01)),
}


def plain_loop(make_optimizer, make_scheduler, steps, epochs):
    """Train as anybody would; returns the parameters, and the learning rate of each batch."""
    net, lrs = copy.deepcopy(awkward_net()), []
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
            nn.functional.cross_entropy(net(torch.from_numpy(x.copy())), torch.from_numpy(y.copy())).backward()
            optimizer.step()
    return state_arrays(net), lrs


def built(engine, workers, schedule, steps, optimizer=SGD, net=awkward_net):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(net(), optimizer, "cross_entropy", schedule=Schedule(schedule, steps=steps))
    return trainer


@pytest.mark.parametrize(
    ("name", "steps", "optimizer"),
    [
        *((name, 1, "sgd") for name in SCHEDULES),
        *((name, steps, "sgd") for name in ("function", "warm-up", "one cycle") for steps in (4, 5, 12)),
        ("one cycle", 1, "adam"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_one_worker_is_the_plain_loop_that_steps_the_scheduler_at_those_batches(name, steps, optimizer):
    (schedule, scheduler), (spec, make_optimizer) = SCHEDULES[name], PLAIN[optimizer]
    expected, lrs = plain_loop(make_optimizer, scheduler(steps), steps, 3)
    for way in WAYS:
        trainer = built("serial", 1, schedule, steps, spec)
        given = {"shuffle": None, "shuffle_block_data": False, "num_batches_per_worker": 3, "num_epochs": 3}
        assert_same_bits(trainer.fit(*blocked(X, Y, 4), **combined(given, way)), expected)
        if BATCHES % steps == 0:  # else a step begins in the middle of the last batch
            trained = np.cumsum([record["samples"] for record in trainer.history])
            last = np.searchsorted(np.cumsum(SIZES * 3), trained)
            assert [record["lr"] for record in trainer.history] == [lrs[number] for number in last]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"merge": Merge(every=3, unit="batches")},
        {"shuffle": PartialShuffle(), "merge": Merge(unit="batches")},
        {"shuffle": "total", "merge": Merge(every=0)},
        {"buffer": BufferSpec("FIRO", 16, threshold=4)},
        {"merge": Merge("commutative", unit="blocks")},
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_worker_goes_through_the_steps_of_every_epoch(workers, options):
    """Batches are as many for all workers, and each step of the schedule has as many of them."""
    notes = Notes()
    trainer = built("serial", workers, fall, 4, partial(Noting, notes=notes, lr=1.0), net=mlp)
    x, y = classification(samples=64)
    trainer.fit(*blocked(x, y, 4), num_epochs=2, batch_size=2, **options)
    rates = [lr for group, lr, *_ in notes if group == 0]
    assert {rate: rates.count(rate) for rate in rates} == {fall(step / 4): 8 for step in range(8)}


@given(st.integers(1, 20), st.integers(0, 3), st.lists(st.fractions(0, 1), min_size=1, max_size=6))
def test_the_steps_of_parts_of_an_epoch_are_those_of_the_epoch(steps, epoch, cuts):
    schedule = make_schedule(Schedule(fall, steps=steps), mlp(), optimizer_factory(SGD))
    bounds = sorted({Fraction(0), Fraction(1), *cuts})

    def at(timed, fraction):
        return [values for begin, values in timed if begin <= fraction][-1]

    for start, stop in pairwise(bounds):
        timed = schedule.during(epoch, start, stop)
        for inner in (Fraction(0), Fraction(1, 3), Fraction(6, 7)):
            expected = at(schedule.during(epoch), start + inner * (stop - start))
            assert at(timed, inner) == expected
        assert schedule.lr(epoch, stop) == timed[-1][1][0]["lr"]


def test_what_makes_no_sense_is_an_error(tmp_path):
    plateau = lr_scheduler.ReduceLROnPlateau
    for schedule, steps, message in (
        (fall, 0, "steps=0: give an integer of at least 1"),
        (plateau, 4, r"Schedule\(steps=4\) of a ReduceLROnPlateau .* is stepped once an epoch"),
        (lambda epoch: -epoch, 4, "sets the learning rate to -0.0125"),
    ):
        with pytest.raises(ValueError, match=message):
            built("serial", 1, schedule, steps).fit(X, Y, num_epochs=1, batch_size=5)


def test_another_number_of_steps_is_warned_of_when_a_fit_is_resumed(tmp_path):
    built("serial", 1, fall, 4).fit(X, Y, num_epochs=1, batch_size=5, callbacks=[Checkpoint(tmp_path)])
    with pytest.warns(UserWarning, match="schedule was .*'steps': 4.*, and is .*'steps': 2"):
        built("serial", 1, fall, 2).fit(X, Y, num_epochs=2, batch_size=5, resume=tmp_path)
