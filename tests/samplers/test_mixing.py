"""Partial shuffles: their order, and chunks that are read sequentially and come in it, from any position."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.data.order import partial_shuffle_generator
from compss_train.samplers.mixing import shuffled_batches
from compss_train.samplers.pools import Pools, exchange, partial_order
from tests.samplers.numbered_files import SIZES, bounds_of, flat

pools = st.builds(Pools, st.integers(1, 15), st.sampled_from([1, 2]))
epochs = {"seed": st.integers(0, 2**40), "epoch": st.integers(0, 9)}
cases = {"sizes": SIZES, "pools": pools, **epochs, "size": st.integers(1, 9)}
runs = st.sampled_from([1, 3, 1024])


class Chunks:
    """Chunks of consecutive numbers, those in ``bad`` unreadable; records which of them were read."""

    def __init__(self, sizes, bad=(), make=lambda start, stop: np.arange(start, stop)):
        self.sizes, self.bad, self.make = sizes, bad, make
        self.requested, self.read = [], []
        self.closed = 0

    @contextmanager
    def open(self, numbers):
        self.requested += numbers
        try:
            yield map(self._rows, numbers)
        finally:
            self.closed += 1

    def _rows(self, number):
        self.read.append(number)
        return None if number in self.bad else self.make(*bounds_of(self.sizes)[number])


def batches_of(sizes, size, start=0):
    return [min(size, sum(sizes) - first) for first in range(start, sum(sizes), size)]


def mix(chunks, pools, seed=0, epoch=0, size=4, start=0, store=None, shuffle=True):
    random = partial_shuffle_generator(seed, epoch) if shuffle else None
    batches = batches_of(chunks.sizes, size, start)
    options = {"pools": pools, "random": random, "batch_sizes": batches, "start": start, "store": store}
    return shuffled_batches(chunks.sizes, chunks.open, **options)


def lists(batches):
    return [None if batch is None else batch.tolist() for batch in batches]


def order_of(sizes, pools, seed=0, epoch=0):
    parts = partial_order(sum(sizes), pools.size, pools=pools.number, seed=seed, epoch=epoch)
    return np.concatenate(list(parts)).tolist()


@given(**cases, run=runs)
def test_samples_come_in_their_order_and_chunks_once(sizes, pools, seed, epoch, size, run):
    chunks = Chunks(sizes)
    with mock.patch("compss_train.samplers.mixing._REFILL", run):
        batches = lists(mix(chunks, pools, seed, epoch, size))
    assert [len(batch) for batch in batches] == batches_of(sizes, size)
    assert flat(batches) == order_of(sizes, pools, seed, epoch)
    assert chunks.read == list(range(len(sizes)))
    assert chunks.closed == 1


def test_reading_keeps_up_with_what_is_drawn():
    chunks = Chunks([100] * 120)
    for batch, _ in enumerate(mix(chunks, Pools(5000), size=100)):
        assert min(120, 50 + batch - 11) <= len(chunks.read) <= 50 + batch + 1


def structures(start, stop):
    x = torch.arange(start, stop)
    return {
        "pair": (x, (x * 2).numpy()),
        "image": x.double()[:, None, None].expand(-1, 2, 3),
        "flag": (x % 2 == 0).numpy(),
        "complex": (x + 1j * x).to(torch.complex64),
        "half": x.bfloat16(),
        "nothing": np.empty((stop - start, 0), np.float32),
        "backwards": np.arange(stop - 1, start - 1, -1)[::-1],
        "by columns": np.asfortranarray(x.numpy()[:, None] * np.ones((1, 3))),
    }


def test_structures_dtypes_and_shapes_come_back_as_they_were():
    for size in (3, 7, 50):  # parts of pools, and several joined
        for batch in mix(Chunks([5, 9, 2, 6], make=structures), Pools(6, 2), size=size):
            x = batch["pair"][0]
            rows, expected = x.numpy(), structures(0, 22)
            assert list(batch) == list(expected)
            for key in ("image", "complex", "half"):
                assert torch.equal(batch[key], expected[key][x])
                assert batch[key].dtype == expected[key].dtype
            for key in ("flag", "nothing", "backwards", "by columns"):
                np.testing.assert_array_equal(batch[key], expected[key][rows], strict=True)
            np.testing.assert_array_equal(batch["pair"][1], 2 * rows, strict=True)


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
