"""The order of a partial shuffle: numbers in pools."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.order import partial_shuffle_generator
from compss_train.samplers.pools import PartialShuffle, SlotPlan, exchange
from tests.helpers.tolerances import chance_of

sizes = {"samples": st.integers(1, 300), "pool": st.integers(1, 80), "pools": st.sampled_from([1, 2])}


def partial_order(samples, pool, *, pools=1, seed=0, epoch=0, start=0):
    """Follow the plan of a partial shuffle of the numbers below ``samples``."""
    sized = PartialShuffle(pool, pools).of_blocks([samples])
    plan = SlotPlan(samples, sized, partial_shuffle_generator(seed, epoch), start)
    held, left = plan.held.copy(), samples - start
    while left:
        drawn = held[plan.draw(pool)]
        arriving, slots = plan.refill()
        held[slots] = arriving
        left -= len(drawn)
        yield drawn


def whole(samples, pool, **options):
    return np.concatenate(list(partial_order(samples, pool, **options)))


@given(**sizes, seed=st.integers(0, 2**40), epoch=st.integers(0, 9))
def test_numbers_occur_once_in_an_order_that_repeats(samples, pool, pools, seed, epoch):
    order = whole(samples, pool, pools=pools, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(samples))
    np.testing.assert_array_equal(order, whole(samples, pool, pools=pools, seed=seed, epoch=epoch))


@given(**sizes, done=st.floats(0, 1))
def test_it_continues_anywhere_with_exactly_what_is_left(samples, pool, pools, done):
    start = round(done * samples)
    rest = list(partial_order(samples, pool, pools=pools, start=start))
    assert np.concatenate([*rest, np.empty(0, int)]).tolist() == whole(samples, pool, pools=pools)[start:].tolist()


def test_a_pool_for_all_is_a_uniform_permutation():
    firsts = [whole(5, 8, pools=pools, seed=seed)[0] for seed in range(2000) for pools in (1, 2)]
    assert chance_of(np.bincount(firsts, minlength=5)) > 0.001


@given(st.integers(1, 12), st.lists(st.integers(0, 11), min_size=1, max_size=60))
def test_an_exchange_of_places_is_one_after_another(size, places):
    places = np.array(places) % size
    pool, arriving = np.arange(size), np.arange(100, 100 + len(places))
    expected_pool, expected = pool.copy(), []
    for place, number in zip(places, arriving, strict=True):
        expected.append(expected_pool[place])
        expected_pool[place] = number
    assert exchange(pool, arriving, places).tolist() == expected
    assert pool.tolist() == expected_pool.tolist()
