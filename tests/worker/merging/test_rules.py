"""Rules of merges: what they compute, and that parts and chunks change nothing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.model.compression import CHUNK, compress
from compss_train.model.parts import Cut, joined
from compss_train.model.training_spec import TensorNames
from compss_train.worker.merging.merge import MergeStages, merge_part
from compss_train.worker.merging.rules import Gathering, Mean, MergeRule, Reducing, Trimmed
from compss_train.worker.merging.trained import Trained
from tests.helpers.models import assert_same_bits


class Median(MergeRule):
    """A rule that the package does not know."""

    name = "median"

    def merge(self, arrays, weights):
        assert len(arrays) == len(weights)
        return {
            name: np.median([of_worker[name] for of_worker in arrays], axis=0).astype(array.dtype)
            for name, array in arrays[0].items()
        }


RULES = {"mean": Mean(), "trimmed": Trimmed(0.2), "own": Median()}


def workers_of(number, seed, *, moments=False):
    random = np.random.default_rng(seed)
    workers = []
    for worker in range(number):
        parameters = {
            "average/w": random.normal(size=(3, CHUNK // 2)).astype(np.float32),
            "optimizer state/0.b": random.normal(size=7),
            "steps": np.array(worker),
        }
        kept = {("average/w", "exp_avg"): 2 * parameters["average/w"]} if moments else None
        weight = int(random.integers(0, 50))
        workers.append(Trained(worker=worker, weight=weight, parameters=parameters, moments=kept))
    return workers


@st.composite
def chunks_of(draw, workers):
    """Aligned ranges of workers, as tasks share them."""
    ranges, start = [], 0
    while start < workers:
        largest = (start & -start) or 1 << workers.bit_length()
        size = draw(st.sampled_from([1 << power for power in range(largest.bit_length())]))
        ranges.append(range(start, min(start + size, workers)))
        start += size
    return ranges


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data(), number=st.integers(1, 9), moments=st.booleans())
def test_neither_chunks_nor_parts_change_a_bit(rule, data, number, moments):
    workers = workers_of(number, number, moments=moments)
    stages = MergeStages(rule=RULES[rule], names=TensorNames(("average/w",)), moments=moments)
    base = dict(workers[0].parameters)

    def merged(parts, chunks):
        cut = Cut.of(base, parts, inside=True)
        gathering = Gathering(stages.rule, cut)
        groups = [gathering(workers[worker] for worker in chunk) for chunk in chunks]
        return [
            merge_part([of_chunk[number] for of_chunk in groups], stages, part)
            for number, part in enumerate(cut.parameters(base))
        ]

    together = range(number)
    (expected,) = merged(1, [together])
    parts = data.draw(st.integers(1, 5)) if stages.rule.by_element else 1
    results = merged(parts, data.draw(chunks_of(number)))
    if moments:
        expected, expected_moments = expected
        found = np.concatenate([np.ravel(kept[key]) for _, kept in results for key in kept])
        np.testing.assert_array_equal(found, np.ravel(*expected_moments.values()))
        results = [parameters for parameters, _ in results]
    assert_same_bits(joined(results), expected)
    assert_same_bits(Reducing(stages.rule)(workers)[0], expected)


@given(number=st.integers(3, 12), trim=st.floats(0.01, 0.49), seed=st.integers(0, 99))
def test_a_trimmed_mean_is_that_of_the_middle_values(number, trim, seed):
    arrays = np.random.default_rng(seed).normal(size=(number, 5)).astype(np.float32)
    dropped = min(math.ceil(trim * number), (number - 1) // 2)
    middle = np.sort(arrays, axis=0)[dropped : number - dropped]
    merged = Trimmed(trim).merge([{"w": array} for array in arrays], [1] * number)
    np.testing.assert_allclose(merged["w"], middle.mean(axis=0, dtype=np.float64), rtol=1e-6)
    assert merged["w"].dtype == np.float32


@given(far=st.floats(-(2.0**99), 2.0**99, width=32), number=st.integers(3, 9))
def test_one_worker_with_bad_data_does_not_move_a_trimmed_mean_beyond_the_others(far, number):
    good = [{"w": np.full(2, value, np.float32)} for value in np.linspace(-1, 1, number - 1)]
    bad = {"w": np.full(2, far, np.float32)}
    merged = Trimmed(0.1).merge([*good, bad], [1] * number)
    assert (np.abs(merged["w"]) <= 1).all()


def test_workers_without_samples_have_no_vote():
    workers = [
        Trained(worker=number, weight=weight, parameters={"w": np.full(2, float(number))})
        for number, weight in enumerate([3, 0, 4, 5, 6])
    ]
    for rule in RULES.values():
        without = rule.merged([workers[number] for number in (0, 2, 3, 4)], {})
        assert_same_bits(dict(rule.merged(workers, {})["parameters"]), dict(without["parameters"]))


def test_rules_without_sums_get_compressed_changes_as_parameters():
    before = {"w": np.linspace(0, 1, 9, dtype=np.float32)}
    changes = [compress(before["w"], before["w"] + shift, "bf16")[0] for shift in (1, 2, 4)]
    workers = [
        Trained(worker=number, weight=1, parameters={"w": change})
        for number, change in enumerate(changes)
    ]
    merged = Trimmed(0.1).merged(workers, {"parameters": before})["parameters"]
    np.testing.assert_allclose(merged["w"], before["w"] + 2, rtol=1e-2)


def test_an_array_that_only_some_workers_have_counts_as_zeros():
    momentum = {("w", "momentum_buffer"): np.full(2, 3.0)}
    workers = [
        Trained(worker=number, weight=1, parameters={"w": np.ones(2)}, moments=moments)
        for number, moments in enumerate([momentum, {}, {}])
    ]
    for rule, expected in ((Mean(), 1.0), (Trimmed(0.1), 0.0), (Median(), 0.0)):
        merged = rule.merged(workers, {})["moments"]
        np.testing.assert_array_equal(merged["w", "momentum_buffer"], np.full(2, expected))


@pytest.mark.parametrize(
    ("merge", "told"),
    [
        (lambda first: {**first, "w": first["w"].astype(np.float64)}, "returned float64 of shape"),
        (lambda first: {**first, "w": first["w"][:1]}, r"of shape \(1,\) for 'w' in parameters"),
        (lambda first: {}, "left out .*'w'"),
        (lambda first: {**first, "v": first["w"]}, "added .*'v'"),
        (lambda first: None, "returned NoneType"),
    ],
    ids=["dtype", "shape", "left out", "added", "nothing"],
)
def test_what_a_rule_returns_has_the_names_shapes_and_dtypes_of_the_workers(merge, told):
    class Own(MergeRule):
        name = "own"

        def merge(self, arrays, weights):
            return merge(dict(arrays[0]))

    workers = [Trained(worker=0, weight=1, parameters={"w": np.ones(2, np.float32)})]
    with pytest.raises((TypeError, ValueError), match=told):
        Own().merged(workers, {})
