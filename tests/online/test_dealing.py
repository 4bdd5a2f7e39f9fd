from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from compss_train.online.stream import needed_by, worker_of

streams, amounts, workers = st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 12)


@given(streams, amounts, workers)
def test_a_stream_is_dealt_in_turn_and_neighbours_begin_at_neighbours(stream, samples, workers):
    dealt = [worker_of(stream, sample, workers, whole=False) for sample in range(samples)]
    assert set(dealt) <= set(range(workers))
    assert all(after == (before + 1) % workers for before, after in pairwise(dealt))
    shares = [dealt.count(worker) for worker in range(workers)]
    assert sum(shares) == samples
    assert max(shares) - min(shares) <= 1
    assert worker_of(stream + 1, 0, workers, whole=False) == worker_of(stream, 1, workers, whole=False)


@given(streams, amounts, workers)
def test_whole_streams_go_to_one_worker_each_and_are_dealt_in_turn(stream, samples, workers):
    assert {worker_of(stream, sample, workers, whole=True) for sample in range(samples + 1)} == {stream % workers}


@given(streams, amounts, workers, st.booleans(), st.data())
def test_needed_by_is_one_more_than_the_last_sample_of_a_worker(stream, samples, workers, whole, data):
    worker = data.draw(st.integers(0, workers - 1))
    own = [n for n in range(samples) if worker_of(stream, n, workers, whole=whole) == worker]
    assert needed_by(worker, stream, samples, workers, whole=whole) == max(own, default=-1) + 1
