"""A slot partition agrees with a model of two sets; different integers are drawn uniformly."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.buffers.partition import SlotPartition, choose_distinct

steps = st.lists(st.tuples(st.sampled_from(["add", "see", "remove", "unsee", "copy"]), st.integers(0, 2**32)))


@settings(max_examples=200)
@given(capacity=st.integers(1, 12), steps=steps)
def test_a_partition_is_a_set_of_unseen_and_a_set_of_seen_slots(capacity, steps):
    partition, unseen, seen = SlotPartition(capacity), set(), set()
    for step, seed in steps:
        random = np.random.default_rng(seed)
        free = np.array(sorted(set(range(capacity)) - unseen - seen), np.intp)
        if step == "add":
            slots = random.permutation(free)[: random.integers(len(free) + 1)]
            partition.add(slots)
            unseen |= set(slots.tolist())
        elif step == "see" and partition.held:
            positions = random.integers(partition.held, size=random.integers(1, 2 * capacity))
            slots = set(partition.at(positions).tolist())
            partition.mark_seen(positions)
            unseen, seen = unseen - slots, seen | slots
        elif step == "remove":
            positions = random.permutation(partition.held)[: random.integers(partition.held + 1)]
            slots = set(partition.at(positions).tolist())
            partition.remove(positions)
            unseen, seen = unseen - slots, seen - slots
        elif step == "unsee":
            partition.mark_all_unseen()
            unseen, seen = unseen | seen, set()
        else:
            partition = SlotPartition.of(capacity, partition.all(), partition.unseen)
        assert (partition.unseen, partition.seen, partition.held) == (len(unseen), len(seen), len(unseen | seen))
        order = partition.all().tolist()
        assert set(order[: len(unseen)]) == unseen
        assert set(order[len(unseen) :]) == seen


@pytest.mark.parametrize(("population", "number"), [(5, 1), (5, 2), (5, 3), (5, 5), (3, 0)])
def test_all_sequences_of_different_integers_are_equally_likely(population, number):
    random, sequences = np.random.default_rng(1), list(permutations(range(population), number))
    times = Counter(tuple(choose_distinct(random, population, number).tolist()) for _ in range(50 * len(sequences)))
    assert set(times) <= set(sequences)
    assert len(sequences) == 1 or chisquare([times[sequence] for sequence in sequences]).pvalue > 1e-4
