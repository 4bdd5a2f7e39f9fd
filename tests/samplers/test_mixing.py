"""Numbers that arrive in a pool take the places of others, one after another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.samplers.pools import exchange


@given(st.integers(1, 12), st.lists(st.integers(0, 11), min_size=1, max_size=60))
def test_an_exchange_of_places_is_one_after_another(size, places):
    places = np.array(places) % size
    pool = np.arange(size)
    arriving = np.arange(100, 100 + len(places))
    expected_pool = pool.copy()
    expected = []
    for place, number in zip(places, arriving, strict=True):
        expected.append(expected_pool[place])
        expected_pool[place] = number
    assert exchange(pool, arriving, places).tolist() == expected
    assert pool.tolist() == expected_pool.tolist()
