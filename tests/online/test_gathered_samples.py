"""Gathered samples: what is taken from them in messages is what was added."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net.messages import unpack
from compss_train.online.gathered_samples import GatheredSamples, PackedSample

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(["f4", "f8", "i2", "bool", "c8"])


def arrays_of(message):
    """Return the numbers, steps and arrays of the samples of a message."""
    header, received = unpack([bytearray(frame) for frame in message])  # as they arrive
    columns = [array.tensor().numpy() for array in received]
    if "count" not in header:
        yield header["sample"], header.get("step"), columns
        return
    steps = header.get("steps", [None] * header["count"])
    for place, step in enumerate(steps):
        yield header["sample"] + 2 * place, step, [column[place] for column in columns]


@given(
    st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=2),
    st.lists(st.integers(1, 20), max_size=20),
    st.booleans(),
)
def test_messages_have_the_samples_in_their_order(layouts, counts, has_steps):
    draw = np.random.default_rng(0)
    gathered = GatheredSamples(stride=2)
    expected = []
    got = []
    for number in range(5, 5 + 2 * sum(counts), 2):
        arrays = [np.asarray(8 * draw.normal(size=shape)).astype(dtype) for shape, dtype in layouts]
        step = number + 1000 if has_steps else None
        expected.append((number, step, [array.copy() for array in arrays]))
        packed = PackedSample.of(number, step, arrays)
        assert packed.is_small
        if not gathered.suits(packed):
            assert gathered.is_full
            count = len(gathered)
            got += arrays_of(gathered.message(count).frames())
            gathered.drop(count)
        gathered.add(packed)
        for array in arrays:
            array[...] = 0
    for count in counts:
        taken = min(count, len(gathered))
        if taken:
            assert gathered.first == 5 + 2 * len(got)
            got += arrays_of(gathered.message(taken).frames())
            gathered.drop(taken)
    assert len(gathered) + len(got) == len(expected)
    for (number, step, arrays), (got_number, got_step, got_arrays) in zip(
        expected, got, strict=False
    ):
        assert (number, step) == (got_number, got_step)
        for array, got_array in zip(arrays, got_arrays, strict=True):
            np.testing.assert_array_equal(array, got_array, strict=True)


def test_other_samples_travel_in_messages_of_their_own():
    x = np.zeros(2, np.float32)
    gathered = GatheredSamples(stride=1)
    gathered.add(PackedSample.of(3, None, [x]))
    assert gathered.suits(PackedSample.of(4, None, [x]))
    others = [(5, None, [x]), (4, 0, [x]), (4, None, [x, x]), (4, None, [x.astype("f8")])]
    for number, step, arrays in [*others, (4, None, [x[:1]])]:
        assert not gathered.suits(PackedSample.of(number, step, arrays))
    assert not PackedSample.of(4, None, [np.zeros(10_000)]).is_small
