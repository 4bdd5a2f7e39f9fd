"""Samples of messages: which are malformed, what is left of them, and which are put together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net import joined, pack_arrays, pack_header
from compss_train.net.messages import unpack
from compss_train.online.arrived_samples import ArrivedSamples, first_burst
from compss_train.online.routing import Routing
from tests.buffers.kinds import make
from tests.online.sample_streams import send_stream


@pytest.mark.parametrize(
    ("header", "shapes", "reason"),
    [
        ({"count": 0}, [(0,)], '"count": 0'),
        ({"count": 2}, [(3, 1)], '"count": 2'),
        ({"count": 2}, [(2, 1), ()], '"count": 2'),
        ({"count": 2, "steps": [1]}, [(2, 1)], "but 1 steps"),
        ({"count": 2, "steps": [1, -1]}, [(2, 1)], "steps=-1"),
        ({"count": 2, "steps": 5}, [(2, 1)], "malformed"),
        ({"count": "many"}, [(2, 1)], "malformed"),
        ({"count": 300}, [(300, 1)], "without credit"),
        ({"count": 2}, [(2, 1)] * 3, "a sample of 3 arrays"),
    ],
)
def test_a_message_of_several_samples_that_is_malformed_is_refused(
    make_stub, header, shapes, reason
):
    stub = make_stub(make("FIFO", 9))
    with stub.connect(0) as connection:
        connection.send(0)
        connection.read("credit")
        arrays = [np.zeros(shape, np.float32) for shape in shapes]
        connection.connection.send({"sample": 1, **header}, arrays)
        assert reason in connection.read("error")["error"]
    send_stream(stub, 0, 2)
    assert stub.drain() == [0, 1]
    assert stub.receiver.failed is None


def arrived(number, rows, *, length=1, workers=1):
    """Return samples from a number on, each of which consists of its own number."""
    numbers = Routing(workers, whole=False).numbers(number, rows)
    array = np.repeat(np.float32(numbers)[:, None], length, 1)
    descriptions, frames = pack_arrays([array])
    header = {"sample": number, "count": rows}
    routing = Routing(workers, whole=False)
    header, arrays = unpack([pack_header(header, descriptions), *frames])
    return ArrivedSamples.of(header, arrays, routing, is_shared=False)


def values(samples):
    return joined(samples.arrays[:1])[:, 0].tolist()


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 8), st.integers(1, 3))
def test_what_is_left_has_its_numbers_steps_and_values(number, rows, known, workers):
    samples = arrived(number, rows, workers=workers)
    left = samples.after(min(known, rows - 1))
    numbers = list(Routing(workers, whole=False).numbers(number, rows))[min(known, rows - 1) :]
    assert len(left) == len(numbers)
    assert list(left.numbers) == list(left.steps) == values(left) == numbers
    assert left.size == 4 * len(numbers)
    assert not left.is_handed_over


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 2**13])), min_size=1))
def test_a_burst_is_the_first_message_and_those_like_it_that_are_small_together(messages):
    waiting = [arrived(0, rows, length=length) for rows, length in messages]
    burst = first_burst(waiting)
    assert burst == waiting[: len(burst)]
    assert burst
    assert {samples.arrays[0].row_layout for samples in burst} == {waiting[0].arrays[0].row_layout}
    if len(burst) > 1:
        assert sum(map(len, burst)) <= 64
        assert sum(samples.size for samples in burst) <= 2**19
    if len(burst) < len(waiting):
        more = [*burst, waiting[len(burst)]]
        differs = more[-1].arrays[0].row_layout != more[0].arrays[0].row_layout
        is_large = sum(samples.size for samples in more) > 2**19
        assert differs or is_large or sum(map(len, more)) > 64
