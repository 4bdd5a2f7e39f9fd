from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.order import Batching


def check(bounds, rows):
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    return sizes


@given(rows=st.integers(1, 500), data=st.data())
def test_a_number_of_batches_uses_every_sample(rows, data):
    number = data.draw(st.integers(1, rows))
    assert len(check(Batching(number=number).bounds(rows), rows)) == number


@given(rows=st.integers(1, 500), size=st.integers(1, 600))
def test_a_batch_size_is_the_most_and_no_batch_more_is_made_than_needed(rows, size):
    sizes = check(Batching(size=size).bounds(rows), rows)
    assert max(sizes) <= size
    assert len(sizes) == -(-rows // size)
