"""What ``merge="auto"`` chooses, as laws of a pure function; and what it says."""

import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import Merge
from compss_train.callbacks import Checkpoint, RoundLines
from compss_train.model.optimizers import optimizer_factory
from compss_train.training import fit as fit_options
from compss_train.training import presets
from compss_train.training.checkpoints import list_checkpoints
from compss_train.training.presets import (
    NESTEROV,
    FitFacts,
    auto_batch,
    auto_merge,
    enough_epochs,
    enough_workers,
)
from tests.helpers.models import ADAM, SGD, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.small_fits import X, Y, trainer_of

FULL = FitFacts(
    samples=60_000, workers=8, momentum=0.9, adaptive=False, batch_norm=False, scheduled=False
)
facts_of_fits = st.builds(
    FitFacts,
    samples=st.integers(1, 10**8),
    workers=st.integers(1, 1000),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99]),
    adaptive=st.booleans(),
    batch_norm=st.booleans(),
    scheduled=st.booleans(),
)


@given(facts_of_fits)
def test_what_auto_chooses_is_within_its_bounds(facts):
    batch = auto_batch(facts)
    merge = auto_merge(facts, batch)
    assert 16 <= batch <= 100
    if facts.workers == 1:
        assert (batch, merge) == (100, Merge())
        return
    most = presets.SAMPLES_PER_MERGE
    if facts.batch_norm:
        most = presets.SAMPLES_PER_MERGE_WITH_BATCH_NORM
        if facts.scheduled:
            most = presets.SCHEDULED_SAMPLES_PER_MERGE
    joint = batch * facts.workers
    wanted = min(most, facts.samples / 4)
    assert merge.every == 1 or abs(merge.every * joint - wanted) <= joint / 2
    assert merge.unit == "batches"


@given(facts_of_fits)
def test_two_momenta_never_add_up_in_short_rounds(facts):
    merge = auto_merge(facts, auto_batch(facts))
    if merge.outer_optimizer is None:
        assert facts.workers == 1 or merge.optimizer_state == "average"
    elif facts.batch_norm:
        assert merge.optimizer_state == "reset"
        assert merge.every >= presets.ROUND_WITH_BATCH_NORM
    else:
        assert merge.every >= presets.ROUND
        assert merge.every * (1 - facts.momentum) >= presets.MEMORIES - 1e-9


@given(facts_of_fits)
def test_an_outer_step_is_as_long_as_the_global_batch_is_large(facts):
    batch = auto_batch(facts)
    outer = auto_merge(facts, batch).outer_optimizer
    if outer is not None:
        length = outer["lr"] / (1 - outer["momentum"])
        assert length == pytest.approx(min(7, batch * facts.workers / 100), rel=0.02)


@given(facts_of_fits, st.integers(1, 40))
def test_fewer_workers_learn_as_one(facts, epochs):
    workers = enough_workers(facts, epochs)
    assert 1 <= workers <= facts.workers
    assert workers <= enough_workers(facts, epochs + 1)
    fewer = replace(facts, workers=workers)
    assert workers == 1 or enough_epochs(fewer, auto_batch(fewer)) <= epochs


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({}, 4),
        ({"workers": 2}, 4),
        ({"samples": 6_400}, 1),
        ({"samples": 6_400, "workers": 32}, None),
        ({"batch_norm": True}, 1),
        ({"batch_norm": True, "samples": 20_000}, 3),
    ],
)
def test_after_so_many_epochs_workers_have_learnt_as_one(changes, epochs):
    facts = replace(FULL, **changes)
    assert enough_epochs(facts, auto_batch(facts)) == epochs


@pytest.mark.parametrize(
    ("changes", "batch", "every", "momentum"),
    [
        ({}, 100, 19, 0.9),
        ({"workers": 2}, 100, 75, 0.65),
        ({"workers": 32}, 25, 19, 0.9),
        ({"workers": 64}, 16, 15, 0.9),
        ({"batch_norm": True}, 100, 4, 0.9),
        ({"batch_norm": True, "workers": 64}, 16, 3, 0.9),
        ({"batch_norm": True, "adaptive": True}, 100, 4, None),
        ({"samples": 20_000}, 33, 19, 0.735),
        ({"samples": 6_400}, 25, 8, None),
        ({"samples": 600}, 25, 1, None),
        ({"momentum": 0.99}, 100, 19, None),
    ],
)
def test_known_choices_of_auto(changes, batch, every, momentum):
    facts = replace(FULL, **changes)
    assert auto_batch(facts) == batch
    merge = auto_merge(facts, batch)
    outer = None if momentum is None else {**NESTEROV, "momentum": momentum}
    assert (merge.every, merge.outer_optimizer) == (every, outer)


def test_momentum_is_that_of_any_optimizer():
    def momentum(options):
        return FitFacts.of(100, 2, mlp(), optimizer_factory(options), scheduled=False).momentum

    assert momentum({"optimizer": "sgd", "lr": 0.1}) == 0
    assert momentum({"optimizer": "sgd", "lr": 0.1, "momentum": 0.8}) == 0.8
    assert momentum({"optimizer": "adam", "lr": 0.1, "betas": (0.7, 0.9)}) == 0.7


def test_a_fit_resumes_with_what_auto_chose_for_it(tmp_path, monkeypatch):
    whole = trainer_of(net=mlp, optimizer=SGD)
    options = {"num_epochs": 2, "merge": "auto", "progress": False}
    old = Merge(every=1, unit="batches", outer_optimizer=NESTEROV, optimizer_state="average")
    with monkeypatch.context() as older:
        older.setattr(fit_options, "auto_batch", lambda facts: 7)
        older.setattr(fit_options, "auto_merge", lambda facts, batch, every: old)
        whole.fit(X, Y, callbacks=[Checkpoint(tmp_path, keep=99)], **options)
    path = list_checkpoints(tmp_path)[1]
    resumed = trainer_of(net=mlp, optimizer=SGD)
    resumed.fit(X, Y, resume=path, **options)
    assert_same_bits(resumed.get_parameters(), whole.get_parameters())
    used = resumed.configuration["fit"]
    assert (used["batch_size"], used["merge"]["outer_optimizer"]) == (7, NESTEROV)
    with pytest.raises(ValueError, match="batch_size was 7, and is 9"):
        trainer_of(net=mlp, optimizer=SGD).fit(X, Y, resume=path, batch_size=9, **options)


def lines_of(workers, samples, num_epochs=1, merge="auto", **options):
    file = io.StringIO()
    x, y = separable(samples)
    trainer = trainer_of(workers=workers, net=nn.Linear(8, 2), optimizer=SGD)
    options |= {"num_epochs": num_epochs, "merge": merge}
    trainer.fit(x, y, shuffle="total", callbacks=[RoundLines(file)], **options)
    return file.getvalue()


def separable(samples):
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 8)).astype(np.float32)
    return x, (x[:, :2].sum(axis=1) > 0).astype(np.int64)


def test_the_choice_is_said_and_whether_fewer_workers_learn_more():
    chosen = "merge='auto': batches of 16 samples, merged every 1 batches by the mean"
    output = lines_of(32, 600)
    assert chosen in output
    assert (
        "32 workers have 2 batches each an epoch, and learn less than one worker: "
        "12 lose least" in output
    )
    assert "learn less" not in lines_of(2, 600)
    assert "merge=" not in lines_of(1, 600)


def test_a_fit_that_is_too_short_for_outer_steps_says_so():
    output = lines_of(4, 12_000, num_epochs=3)
    assert (
        "4 workers have 60 batches each an epoch, and learn less than one worker until about "
        "epoch 4: 3 lose least" in output
    )
    assert "learn less" not in lines_of(4, 12_000, num_epochs=4)
    assert "learn less" not in lines_of(4, 12_000, num_epochs=3, merge="synchronous", batch_size=40)


def test_the_epochs_of_earlier_fits_count():
    x, y = separable(12_000)
    trainer = trainer_of(workers=4, net=nn.Linear(8, 2), optimizer=SGD)
    outputs = [io.StringIO() for _ in range(2)]
    for output in outputs:
        trainer.fit(x, y, num_epochs=2, merge="auto", callbacks=[RoundLines(output)])
    first, second = [output.getvalue() for output in outputs]
    assert "until about epoch 4" in first
    assert "learn less" not in second


def test_a_fit_whose_loss_does_not_fall_says_so_once():
    x, y = separable(600)
    y[::3] = 1 - y[::3]  # so that large weights cost much
    ruinous = Merge(
        every=1,
        unit="batches",
        outer_optimizer={"optimizer": "sgd", "lr": 20.0, "momentum": 0.9},
        optimizer_state="average",
    )

    def said(epochs, merge, workers=4):
        trainer = trainer_of(workers=workers, net=nn.Linear(8, 2), optimizer=SGD)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(x, y, num_epochs=epochs, batch_size=25, merge=merge, progress=False)
        return [str(warning.message) for warning in caught]

    (message,) = said(4, ruinous)
    assert "after a quarter of the fit" in message
    assert f"{ruinous.outer_optimizer}" in message
    assert "try merge='synchronous'" in message
    assert said(4, "auto") == said(4, "synchronous") == said(4, ruinous, workers=1) == []


@pytest.mark.parametrize("optimizer", [SGD, {"optimizer": "sgd", "lr": 0.3}, ADAM])
@pytest.mark.parametrize("net", [mlp, awkward_net])
def test_small_data_and_many_workers_learn_no_less_than_merging_once_an_epoch(net, optimizer):
    x, y = classification(samples=300)

    def loss(**options):
        trainer = trainer_of(workers=8, net=net, optimizer=optimizer)
        trainer.fit(x, y, num_epochs=3, shuffle="total", progress=False, **options)
        return trainer.evaluate(x, y)["loss"]

    assert loss(merge="auto") <= loss(batch_size=100) + 0.02
