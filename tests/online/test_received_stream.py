"""A connection counts its samples, and the credit of its sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net import MessageError
from compss_train.online.received_stream import ReceivedStream
from tests.online.test_arrived_samples import arrived, values


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 9)), max_size=30),
)
def test_each_sample_waits_once_and_credit_never_exceeds_what_may_be_ahead(ahead, actions):
    """A sender sends some samples again; what waits is taken from the front."""
    stream = ReceivedStream(0, 3)
    end = 3
    taken = []
    for sends, back, count in actions:
        added = stream.grant(ahead)
        assert added == 0 or added >= ahead // 2
        assert stream.credit + stream.waiting <= ahead
        if sends and stream.credit >= count:
            samples = arrived(max(0, end - back), count)
            is_new = samples.numbers[-1] >= end
            assert stream.take(samples) is is_new
            end = max(end, samples.numbers[-1] + 1)
        elif not sends:
            waiting = [value for samples in stream.messages for value in values(samples)]
            count = min(count, len(waiting))
            taken += waiting[:count]
            stream.drop(count)
        assert stream.next == end
        assert stream.waiting == sum(map(len, stream.messages))
    taken += [value for samples in stream.messages for value in values(samples)]
    assert taken == list(range(3, end))


def test_samples_that_are_lost_are_not_expected_before_the_first_one():
    stream = ReceivedStream(0, 3)
    stream.give_up(2)
    assert stream.next == 3
    stream.give_up(5)
    assert stream.next == 5
    stream.take(arrived(5, 1))
    with pytest.raises(MessageError, match="send it before the first one"):
        stream.give_up(9)


def test_a_stream_that_is_refused_forgets_what_waits():
    stream = ReceivedStream(0, 0)
    stream.take(arrived(0, 3))
    stream.ends = True
    stream.refuse()
    assert (stream.waiting, stream.ended, stream.refused) == (0, True, True)
