"""Which worker gets which sample, and the keys of streams."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from compss_train.online.routing import Routing, StreamKeys

streams = st.integers(0, 10**6)
samples = st.integers(0, 60)
workers = st.integers(1, 12)


@given(streams, samples, workers)
def test_streams_are_routed_round_robin_from_successive_workers(stream, samples, workers):
    routing = Routing(workers, whole=False)
    routed = [routing.worker_of(stream, sample) for sample in range(samples)]
    assert set(routed) <= set(range(workers))
    assert all(after == (before + 1) % workers for before, after in pairwise(routed))
    counts = [routed.count(worker) for worker in range(workers)]
    assert sum(counts) == samples
    assert max(counts) - min(counts) <= 1
    assert routing.worker_of(stream + 1, 0) == routing.worker_of(stream, 1)


@given(streams, samples, workers)
def test_whole_streams_are_routed_to_one_worker_each(stream, samples, workers):
    routing = Routing(workers, whole=True)
    assert {routing.worker_of(stream, sample) for sample in range(samples + 1)} == {
        stream % workers
    }


@given(streams, samples, samples, workers, st.booleans(), st.data())
def test_samples_that_a_worker_gets_are_counted_and_the_next_one_is_known(
    stream, first, end, workers, whole, data
):
    worker = data.draw(st.integers(0, workers - 1))
    routing = Routing(workers, whole)
    routed = [sample for sample in range(first, end) if routing.worker_of(stream, sample) == worker]
    assert routing.count(worker, stream, range(first, end)) == len(routed)
    next_sample = routing.next_sample(worker, stream, first)
    if whole and stream % workers != worker:
        assert next_sample is None
    elif routed:
        assert next_sample == routed[0]
    else:
        assert next_sample >= max(first, end)


def test_the_keys_of_streams_differ_between_streams_and_fits_and_do_not_tell_the_secret():
    keys = StreamKeys("a secret")
    others = StreamKeys("another")
    made = [keys.token, others.token]
    made += [fit.of(stream) for fit in (keys, others) for stream in (0, 1, 10, 2**62)]
    assert len(set(made)) == len(made)
    assert keys.of(7) == StreamKeys("a secret").of(7)
    assert "secret" not in repr(keys)
