"""The order of a partial shuffle: numbers in pools."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.samplers.pools import exchange, partial_order

sizes = {"samples": st.integers(1, 300), "pool": st.integers(1, 80), "pools": st.sampled_from([1, 2])}


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


@given(samples=sizes["samples"], pool=sizes["pool"])
def test_no_number_comes_before_the_pools_have_taken_it_in(samples, pool):
    places = np.arange(samples)
    assert (whole(samples, pool, pools=1) // pool == places // pool).all()
    # The first pool's run and the one that numbers arrive from.
    assert (whole(samples, pool, pools=2) // pool <= places // pool + 1).all()


def test_two_pools_carry_numbers_further_than_one():
    places = np.arange(20_000)

    def distance(pool, pools):
        return np.abs(whole(20_000, pool, pools=pools) - places).mean()

    one, two, full = distance(500, 1), distance(500, 2), distance(20_000, 1)
    assert one == pytest.approx(500 / 3, rel=0.05)  # of two uniform draws from a run
    assert 2 * one < two < full
    assert full == pytest.approx(20_000 / 3, rel=0.05)


def test_a_pool_for_all_is_a_uniform_permutation():
    firsts = [whole(5, 8, pools=pools, seed=seed)[0] for seed in range(2000) for pools in (1, 2)]
    assert chisquare(np.bincount(firsts, minlength=5)).pvalue > 0.001


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
