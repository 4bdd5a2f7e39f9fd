"""Law 4: workers on time are merged as synchronously; late ones, once, from the parameters that
they began from.
"""

import numpy as np
import pytest
from torch import nn

from compss_train import Merge, SerialEngine
from compss_train.engines import Traits
from compss_train.model.training_spec import TensorNames
from compss_train.training.schedules.quorum import Quorum
from compss_train.worker.merging.merge import MergeStages, merge_part, rebased
from compss_train.worker.merging.rules import Mean
from compss_train.worker.merging.trained import Trained
from tests.engines import tasks
from tests.helpers.models import ADAM, assert_close, assert_same_bits, blocked, classification
from tests.helpers.small_fits import STILL, fitted, trainer_of
from tests.helpers.tolerances import sum_error

X, Y = classification(samples=60)
FIT = {"num_epochs": 3, "batch_size": 5}


class Blind(SerialEngine):
    """Cannot see what has arrived, as COMPSs."""

    traits = Traits(asynchronous=False, interruptible=False)

    def arrived(self, refs):
        return []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"outer_optimizer": ADAM, "averaging": "ema"},
        {"optimizer_state": "average", "averaging": 0.9, "averaging_unit": "steps"},
        {"dtype": "int8", "optimizer_state": "average"},
        {"every": 2, "unit": "batches", "grace": 0.5},
        {"kind": "auto", "quorum": 0.75},
    ],
)
def test_if_nobody_is_late_the_bits_are_those_of_synchronous_merging(options):
    commutative = Merge(**{"kind": "commutative", **options})
    ours = fitted("serial", 4, *blocked(X, Y, 9), **FIT, merge=commutative)
    with pytest.warns(UserWarning, match="merge synchronously; with .*quorum=0"):
        blind = fitted(Blind(), 4, *blocked(X, Y, 9), **FIT, merge=commutative)
    synchronous = {
        name: value for name, value in options.items() if name not in ("quorum", "grace")
    }
    together = fitted("serial", 4, *blocked(X, Y, 9), **FIT, merge=Merge(**synchronous))
    assert_same_bits(ours, together)
    assert_same_bits(blind, together)


def test_a_late_change_is_added_with_its_samples():
    """The law: global + Σ nᵢ/N (wᵢ - bᵢ); statistics are averaged, integers take the maximum."""
    random = np.random.default_rng(1)
    base, current, late, on_time = (
        {
            "w": random.normal(size=50).astype(np.float32),
            "v": random.uniform(size=4),
            "n": np.array(each),
        }
        for each in (1, 2, 5, 3)
    )
    of_late, of_other = (
        [Trained(worker=number, weight=weight, parameters=parameters)]
        for number, (parameters, weight) in enumerate([(late, 10), (on_time, 30)])
    )
    groups = [rebased(of_late, base, current, {"v"}), of_other]
    stages = MergeStages(rule=Mean(), names=TensorNames(("w",), frozenset({"v"})))
    merged = merge_part(groups, stages, current)
    expected = {
        "w": current["w"] + (late["w"] - base["w"]) / 4 + (on_time["w"] - current["w"]) * 3 / 4,
        "v": (late["v"] + 3 * on_time["v"]) / 4,
        "n": np.array(5),
    }
    assert_close(merged, expected, sum_error(np.float32, 8, 4.0))


def test_a_late_worker_is_merged_once_and_all_samples_are_trained_once(shared_local, tmp_path):
    """The second worker is held in its first round until the first one has begun its last."""
    gate = tmp_path / "gate"
    samples = 8

    def hold_second(batch):
        if batch[0, 1::2].any():  # the odd blocks are the second worker's
            tasks.wait_for(gate, None)
        else:
            tasks.note("first", tmp_path / "order")
            if len((tmp_path / "order").read_text().split()) > 2 * samples // 2:
                gate.touch()
        return batch

    def ledger():
        net = nn.Linear(samples, 1, bias=False)
        nn.init.zeros_(net.weight)
        return net

    trainer = trainer_of(
        shared_local,
        2,
        net=ledger,
        optimizer={"optimizer": "sgd", "lr": 1.0},
        loss=_negative,
        transform=hold_second,
        metric=None,
    )
    data = blocked(np.eye(samples, dtype=np.float32), np.zeros((samples, 1), np.float32), samples)
    times = trainer.fit(*data, num_epochs=3, batch_size=1, merge="commutative", **STILL)["weight"]
    # Alone a change counts whole, and half where both workers are merged: the last of one, the
    # first of the other.
    assert set(times.ravel().tolist()) <= {2.5, 3.0}
    assert [record["samples"] for record in trainer.history] == [samples] * 3


def _negative(output, target):
    return -output.sum()


@pytest.mark.parametrize(
    ("arrived", "running", "slots", "now", "due"),
    [
        ([10, 10, 10], [], 4, 10.0, True),  # all
        ([10], [10, 10, 10], 4, 99.0, False),  # no quorum
        ([10, 10, 10], [10], 4, 11.0, False),  # the last one is expected within the grace period
        ([10, 10, 10], [10], 4, 12.5, True),  # which is over
        ([10, 10, 10], [13], 4, 10.5, True),  # a slow worker is not waited for
        ([10, 10, 10], [7], 4, 10.5, False),  # one that was faster than the others are now is
        ([3, 3, 3], [3], 4, 10.5, True),  # one that should have been there long ago is not
        ([10, 10, 10, 10], [40], 4, 10.5, False),  # with more workers than slots nobody is late
        ([10], [40], 2, 10.0, True),  # three quarters of two workers are one
    ],
)
def test_merges_happen_with_a_quorum_after_the_grace_period(arrived, running, slots, now, due):
    """All have the seconds of each worker's round, which began at 0; a quorum was there first at
    10.
    """
    quorum = Quorum(0.75, 0.2)
    others = [(0.0, last) for last in running]
    quorum.is_due(10.0, arrived, others, slots)
    assert quorum.is_due(now, arrived, others, slots) == due
