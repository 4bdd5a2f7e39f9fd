"""``Callback.on_merge``: other weights of workers, and rules of merges in fits."""

from dataclasses import replace

import numpy as np
import pytest

from compss_train import Merge, MergeRule
from compss_train.callbacks import Callback, Checkpoint
from tests.helpers.models import assert_same_bits, blocked, classification
from tests.helpers.small_fits import fitted, trainer_of

X, Y = classification(samples=60)
FIT = {"num_epochs": 3, "batch_size": 5, "progress": False}
KINDS = {"synchronous": Merge(), "commutative": Merge("commutative", quorum=1)}
"""Schedules whose merges have all workers, however late one is."""


class Weighing(Callback):
    def __init__(self, weight=lambda worker: worker.weight):
        self.weight = weight
        self.seen = []

    def on_merge(self, trainer, workers):
        for worker in workers:
            self.seen.append((worker.round, worker.worker, worker.weight))
            assert worker.measured["loss"] > 0
            worker.weight = self.weight(worker)


def train(engine, merge, workers=3, **options):
    trainer = trainer_of(engine, workers)
    parameters = trainer.fit(*blocked(X, Y, 6), **{**FIT, "merge": merge, **options})
    return parameters, trainer.history


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_stay_change_no_bit(engine, kind):
    callback = Weighing()
    weighed, history = train(engine, KINDS[kind], callbacks=[callback])
    expected, _ = train("serial", Merge())
    assert_same_bits(weighed, expected)
    assert sorted(callback.seen) == [
        (round_, worker, 20) for round_ in range(3) for worker in range(3)
    ]
    assert [each["weight"] for record in history for each in record["workers"]] == [20] * 9


def test_only_ratios_of_weights_count_and_0_leaves_a_worker_out():
    only_first = Weighing(lambda worker: 2.5 * (worker.worker == 0))
    weighed, history = train("serial", Merge(), callbacks=[only_first])
    assert [each["weight"] for each in history[0]["workers"]] == [2.5, 0, 0]
    alone = trainer_of("serial", 3)
    x, y = blocked(X, Y, 6)
    one_round = {**FIT, "num_epochs": 1}
    first = alone.fit(x, y, **one_round, merge=Merge(rule=First()))
    assert_same_bits(train("serial", Merge(), num_epochs=1, callbacks=[only_first])[0], first)
    assert {name: array.dtype for name, array in weighed.items()} == {
        name: array.dtype for name, array in first.items()
    }


class First(MergeRule):
    """The first worker's parameters."""

    name = "first"

    def merge(self, arrays, weights):
        return dict(arrays[0])


class Largest(MergeRule):
    """Of each element the largest."""

    name = "largest"

    def merge(self, arrays, weights):
        return {name: np.max([each[name] for each in arrays], axis=0) for name in arrays[0]}


@pytest.mark.parametrize(
    "rule", [First(), Largest(), "trimmed"], ids=["first", "largest", "trimmed"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_works_with_each_schedule_that_has_all_workers(engine, rule, kind):
    options = {"rule": rule, "optimizer_state": "average", "averaging": "ema"}
    ours, history = train(engine, replace(KINDS[kind], **options), workers=4)
    expected, records = train("serial", Merge(**options), workers=4)
    assert_same_bits(ours, expected)
    assert [record["loss"] for record in history] == [record["loss"] for record in records]


def test_a_trimmed_mean_learns_although_a_worker_has_wrong_labels():
    labels = np.array(Y)
    labels[:10] = (labels[:10] + 1) % 3
    scale = np.ones((60, 1), np.float32)
    scale[:10] = 1e3
    x, y = blocked(X * scale, labels, 6)
    losses = {}
    for rule in ("weighted", "trimmed"):
        trainer = trainer_of("serial", 6, seed=1)
        trainer.fit(
            x, y, num_epochs=20, batch_size=5, shuffle=None, merge=Merge(rule=rule), progress=False
        )
        losses[rule] = trainer.evaluate(X[10:], Y[10:])["loss"]
    assert losses["trimmed"] < 0.5 * losses["weighted"]


def test_a_resumed_fit_weighs_as_an_uninterrupted_one(tmp_path):
    growing = lambda worker: worker.weight + worker.round + worker.worker  # noqa: E731
    whole, _ = train("serial", Merge(), num_epochs=4, callbacks=[Weighing(growing)])
    checkpoint = Checkpoint(tmp_path)
    trainer_of("serial", 3).fit(
        *blocked(X, Y, 6),
        **{**FIT, "num_epochs": 4},
        callbacks=[Stopping(), Weighing(growing), checkpoint],
    )
    resumed = trainer_of("serial", 3)
    parameters = resumed.fit(
        *blocked(X, Y, 6),
        **{**FIT, "num_epochs": 4},
        callbacks=[Weighing(growing), Checkpoint(tmp_path)],
        resume=True,
    )
    assert_same_bits(parameters, whole)


class Stopping(Callback):
    def on_round_end(self, trainer, record):
        if record["round"] == 1:
            trainer.stop("half")


@pytest.mark.parametrize(
    ("merge", "workers", "callbacks", "name"),
    [
        (Merge(rule="trimmed"), 2, [], "rule='trimmed'"),
        (Merge("parameter_server"), 3, [Weighing()], "on_merge"),
        (Merge("commutative", quorum=0), 3, [Weighing()], "on_merge"),
        (Merge(), 3, [Weighing(lambda worker: -1)], "Weighing.on_merge"),
        (Merge(), 3, [Weighing(lambda worker: float("nan"))], "Weighing.on_merge"),
        (Merge(), 3, [Weighing(lambda worker: 0)], "Weighing.on_merge"),
        (Merge(), 3, [Weighing(lambda worker: "3")], "Weighing.on_merge"),
    ],
    ids=["few workers", "server", "alone", "negative", "NaN", "all 0", "a string"],
)
def test_wrong_rules_and_weights(merge, workers, callbacks, name, raises):
    with raises(ValueError, name):
        train("serial", merge, workers=workers, callbacks=callbacks)


def test_fits_of_few_blocks_have_too_few_workers_for_a_trimmed_mean():
    with pytest.raises(ValueError, match="at least 3 workers that train, and there are 2"):
        fitted("serial", 4, *blocked(X, Y, 2), **FIT, merge=Merge(rule="trimmed"))
