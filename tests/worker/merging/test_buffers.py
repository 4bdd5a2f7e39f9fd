"""``Merge(buffers=...)``: queues, maxima and other buffers that are no statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import DistributedTrainer, DivergedError, Merge
from compss_train.callbacks import Checkpoint
from compss_train.model import parameters as params
from compss_train.model.parts import Cut
from compss_train.model.training_spec import TensorNames
from compss_train.worker.merging.buffers import BufferRules
from compss_train.worker.merging.merge import MergeStages, gather_items, merge_part
from compss_train.worker.merging.rules import Gathering, Mean, MergeRule, Trimmed
from compss_train.worker.merging.trained import Trained

WORKERS = 3
BATCH = 5
X = torch.randn(WORKERS * 20, 4, generator=torch.Generator().manual_seed(0))
RULES = {"keeping.queue": "worker", "*.next": "worker", "*.peak": "max", "keeping.stamp": "first"}


class Keeping(nn.Module):
    """Keeps buffers of several kinds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(7))
        self.register_buffer("next", torch.zeros((), dtype=torch.long))
        self.register_buffer("peak", torch.full((4,), float("-inf")))
        self.register_buffer("stamp", torch.zeros(()))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), float("nan"), 0.1]))

    def forward(self, x):
        if self.training:
            self.queue[int(self.next) % 7] = x.mean()
            self.next += 1
            self.peak = torch.maximum(self.peak, x.amax(0))
            self.stamp.copy_(x.sum())
        return x + self.mask[0]


def make_net():
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("keeping", Keeping())
    net.add_module("linear", nn.Linear(4, 1))
    return net


def fitted(merge, epochs=3, *, rules=RULES, engine="serial", **options):
    trainer = DistributedTrainer(WORKERS, engine=engine, threads=1, seed=0)
    trainer.build(make_net(), {"optimizer": "sgd", "lr": 0.01}, nn.MSELoss())
    trainer.fit(
        *(X, X.sum(1, keepdim=True)),
        num_epochs=epochs,
        batch_size=BATCH,
        shuffle=None,
        shuffle_block_data=False,
        progress=False,
        merge=Merge(**merge, buffers=rules),
        **options,
    )
    return trainer


def looped(worker, epochs=3):
    """Return the buffers of a worker that trains its block alone."""
    keeping = Keeping()
    for x in X.chunk(WORKERS)[worker].split(BATCH) * epochs:
        keeping(x)
    return {f"keeping.{name}": buffer.numpy() for name, buffer in keeping.named_buffers()}


KINDS = {
    "synchronous": {"kind": "synchronous"},
    "trimmed": {"rule": "trimmed"},
    "an outer optimizer": {"outer_optimizer": {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}},
    "int8": {"dtype": "int8"},
    "averages": {"averaging": "ema"},
    "of steps": {"averaging": "ema", "averaging_unit": "steps"},
    "a quorum": {"kind": "commutative", "quorum": 1},
    "on arrival": {"kind": "commutative", "quorum": 0},
    "halving": {"kind": "commutative", "rule": "halving"},
    "a server": {"kind": "parameter_server"},
}


def rules_for(kind):
    alone = kind in ("on arrival", "halving", "a server")
    return {**RULES, "keeping.stamp": "worker"} if alone else RULES


def assert_right(trainer, epochs=3):
    loops = [looped(worker, epochs) for worker in range(WORKERS)]
    parameters = trainer.get_parameters()
    for name in ("queue", "next", "stamp", "mask"):
        key = f"keeping.{name}"
        assert np.array_equal(parameters[key], loops[0][key], equal_nan=name == "mask"), name
    peak = np.maximum.reduce([of_worker["keeping.peak"] for of_worker in loops])
    assert np.array_equal(parameters["keeping.peak"], peak)
    for state, of_worker in zip(trainer.snapshot().workers, loops, strict=True):
        assert np.array_equal(state.module_buffers["keeping.queue"], of_worker["keeping.queue"])
    assert [*parameters] == [*make_net().state_dict()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_merge(kind):
    assert_right(fitted(KINDS[kind], rules=rules_for(kind)))


@pytest.mark.parametrize("kind", ["synchronous", "int8", "on arrival"])
def test_resumed(tmp_path, kind):
    rules = rules_for(kind)
    fitted(KINDS[kind], 2, rules=rules, callbacks=[Checkpoint(tmp_path)])
    resumed = fitted(KINDS[kind], 4, rules=rules, callbacks=[Checkpoint(tmp_path)], resume=True)
    assert_right(resumed, 4)


def test_other_rules_on_resuming(tmp_path, raises):
    fitted({}, 1, callbacks=[Checkpoint(tmp_path)])
    with raises(ValueError, "buffers"):
        fitted({}, 2, rules={"keeping.queue": "max"}, callbacks=[Checkpoint(tmp_path)], resume=True)


def test_on_every_engine(engine):
    assert_right(fitted({}, 2, engine=engine), 2)


@pytest.mark.parametrize("kind", ["synchronous", "on arrival", "a server"])
def test_parameters_that_are_set_replace_them_in_all_workers(engine, tmp_path, kind):
    """Also in a trainer that was restored, whose workers' states are in this process."""
    rules = rules_for(kind)
    trained = fitted(KINDS[kind], 2, rules=rules, engine=engine, callbacks=[Checkpoint(tmp_path)])
    restored = DistributedTrainer(WORKERS, engine="serial", threads=1, seed=0)
    restored.build(make_net(), {"optimizer": "sgd", "lr": 0.01}, nn.MSELoss())
    restored.restore(tmp_path)
    for trainer in (trained, restored):
        trainer.set_parameters(params.from_module(make_net()))
        assert all(
            not state.module_buffers or "keeping.queue" not in state.module_buffers
            for state in trainer.snapshot().workers
        )
        trainer.fit(
            *(X, X.sum(1, keepdim=True)),
            num_epochs=3,
            batch_size=BATCH,
            shuffle=None,
            shuffle_block_data=False,
            progress=False,
            merge=Merge(**KINDS[kind], buffers=rules),
        )
        assert_right(trainer, 3)


@pytest.mark.parametrize("kind", ["synchronous", "on arrival", "a server"])
def test_infinities_that_nobody_changes_stay(kind):
    trainer = fitted(KINDS[kind], rules=None)
    mask = Keeping().mask.numpy()
    assert np.array_equal(trainer.get_parameters()["keeping.mask"], mask, equal_nan=True)


ARRAYS = {
    "weight": np.ones(3, np.float32),
    "mask": np.array([0.1, -np.inf, np.nan]),
    "statistic": np.zeros(3),
    "peak": np.zeros(3),
    "queue": np.zeros(3),
}
BUFFERS = BufferRules(maximum=frozenset({"peak"}), first=frozenset({"queue"}))


class Median(MergeRule):
    """A rule of a user."""

    name = "median"
    by_element = True

    def merge(self, arrays, weights):
        return {
            name: np.median([of_worker[name] for of_worker in arrays], axis=0).astype(array.dtype)
            for name, array in arrays[0].items()
        }


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([Mean(), Trimmed(0.1), Median()]),
)
def test_neither_tasks_nor_parts_matter(values, tasks, number_of_parts, rule):
    workers = []
    for worker, value in enumerate(values):
        after = {
            **ARRAYS,
            "weight": np.full(3, value, np.float32),
            "statistic": np.full(3, value),
            "peak": np.full(3, value),
            "queue": np.full(3, value),
        }
        by_rule, maxima, firsts = BUFFERS.split(after, worker)
        workers.append(
            Trained(
                worker=worker,
                weight=worker % 3,
                parameters=by_rule,
                maxima=maxima,
                firsts=firsts,
                unchanged=frozenset({"mask"}),
            )
        )
    names = TensorNames(("weight",), frozenset({*ARRAYS} - {"weight"}))
    stages = MergeStages(rule=rule, names=names, buffers=BUFFERS)
    cut = Cut.of(ARRAYS, number_of_parts, inside=True)
    size = -(-len(workers) // tasks)
    gathered = [
        Gathering(rule, cut)(workers[start : start + size])
        for start in range(0, len(workers), size)
    ]
    merged = {}
    for number, part in enumerate(cut.parameters(ARRAYS)):
        groups = [of_task[number] for of_task in gathered]
        tree = [gather_items(groups[:2], rule), *groups[2:]]
        arrays = merge_part(tree, stages, part)
        merged |= getattr(arrays, "arrays", arrays)
    counted = [value for worker, value in enumerate(values) if worker % 3]
    assert merged["mask"].tobytes() == ARRAYS["mask"].tobytes()
    assert np.array_equal(merged["peak"], np.full(3, max(counted)))
    assert np.array_equal(merged["queue"], np.full(3, counted[0]))
    usual = rule.merge(
        [{"w": np.full(3, value)} for value in counted],
        [worker % 3 for worker in range(len(values)) if worker % 3],
    )
    np.testing.assert_allclose(merged["statistic"], usual["w"], atol=1e-12)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"qeue": "worker"}, "qeue"),
        ({"linear": "max"}, "linear"),
        ({"keeping.next": "mean"}, "keeping.next"),
        ({"keeping.next": "median"}, "median"),
        ({"keeping": "first"}, None),
    ],
)
def test_wrong_rules(raises, rules, words):
    if words is None:
        fitted({}, 1, rules=rules)
        return
    with raises(ValueError, words):
        fitted({}, 1, rules=rules)


@pytest.mark.parametrize("kind", ["on arrival", "halving", "a server"])
def test_no_first_where_each_merges_alone(raises, kind):
    with raises(ValueError, "buffers="):
        fitted(KINDS[kind], 1)


def test_rules_are_a_dict(raises):
    with raises(TypeError, "buffers="):
        Merge(buffers=["queue"])


class Masked(nn.Module):
    """Attends with a causal mask of minus infinity, and observes the smallest value."""

    def __init__(self, factor):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.factor = factor
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("least", torch.tensor(float("inf")))
        self.frozen = nn.Parameter(torch.tensor([0.0, float("-inf")]), requires_grad=False)

    def forward(self, x):
        self.least.copy_(torch.minimum(self.least, x.min()) * self.factor)
        return self.linear(torch.softmax(self.mask, 1)[0] * x) + self.frozen[0]


@pytest.mark.parametrize("kind", [*KINDS])
def test_networks_with_infinite_buffers_train(kind):
    torch.manual_seed(0)
    trainer = DistributedTrainer(WORKERS, engine="serial", threads=1, seed=0)
    trainer.build(Masked(1.0), {"optimizer": "sgd", "lr": 0.1}, nn.MSELoss())
    trainer.fit(X, X[:, :1], num_epochs=2, batch_size=5, progress=False, merge=Merge(**KINDS[kind]))
    assert trainer.history[1]["loss"] < trainer.history[0]["loss"]
    parameters = trainer.get_parameters()
    for name in ("mask", "frozen"):
        assert np.array_equal(parameters[name], Masked(1.0).state_dict()[name].numpy())
    assert np.isfinite(parameters["least"]) or kind == "halving"  # half of an infinity is one


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_buffer_that_training_makes_not_finite(raises, factor):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(Masked(1.0), {"optimizer": "sgd", "lr": 0.1}, nn.MSELoss())
    trainer.fit(X, X[:, :1], num_epochs=1, batch_size=5, progress=False)
    parameters = trainer.get_parameters()
    trainer.build(Masked(factor), {"optimizer": "sgd", "lr": 0.1}, nn.MSELoss())
    trainer.set_parameters(parameters)
    with raises(DivergedError, "least"):
        trainer.fit(X, X[:, :1], num_epochs=1, batch_size=5, progress=False)
