"""Receiving: every sample once, whatever connections do, also where a buffer is full."""

import itertools
import json
import socket
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.buffers import TimeStep
from compss_train.online import receiver
from compss_train.online.connection import Address, ConnectionLostError
from tests.buffers.kinds import Hold, Thread, make, until
from tests.online.parts import HERE, KEY, Place, bare, fit, frame, nothing_left, said, stream, value
from tests.online.sending import finish, run, send

# Every sample once


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1), st.booleans()), max_size=4), st.booleans())
def test_a_stream_that_is_cut_anywhere_and_runs_again_leaves_each_sample_once(cuts, paired):
    with nothing_left():
        place = Place(make("SimPairedReservoir" if paired else "FIFO", 50), paired=paired)
        left = []
        try:
            for samples, share, dead in cuts:
                sock = bare(place.port)
                sock.sendall(frame({"hello": "samples", "stream": 3, "token": KEY}))
                data = b"".join(
                    frame({"sample": number, "step": number}, *value(number))
                    for number in range(said(sock)["next"], samples)
                )
                cut = int(share * len(data))
                sock.sendall(data[:cut])
                if dead:
                    sock.close()
                else:  # it is thought dead, and what is left of it comes while the next one sends
                    left.append((sock, data[cut:]))
            others = [Thread(sock.sendall, data) for sock, data in left]
            connection, upto = place.hello(3)
            with connection:
                for number in range(upto, 8):
                    connection.send({"sample": number, "step": number}, value(number))
                assert "ended" in finish(connection)
            for other, (sock, _) in zip(others, left, strict=True):
                other.result()
                sock.close()
            assert place.buffer.samples_put == 8
            if not paired:
                assert place.drained() == list(range(8))
        finally:
            place.die()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["old", "new", "newer"]), max_size=16),
    st.integers(0, 5),
    st.integers(0, 5),
    st.randoms(),
)
def test_connections_of_one_stream_may_be_interleaved_in_any_way(schedule, first, second, random):
    place = Place(make("FIFO", 50))
    try:
        # Each begins where the worker was when it said hello, at some moment of the one before.
        begun = {"old": itertools.count(), "new": None, "newer": None}
        sent = {"old": 0, "new": 0, "newer": 0}
        waits = {"old": 0, "new": first, "newer": first + second}
        for turn, who in enumerate(schedule):
            if turn >= waits[who]:
                if begun[who] is None:
                    begun[who] = itertools.count(place.receiver._next.get(0, 0))
                burst = [({"sample": next(begun[who])}, list(value(turn))) for _ in range(random.randint(1, 3))]
                place.receiver._put(0, burst)
                sent[who] += 1
        highest = max(next(count) for count in begun.values() if count is not None)
        assert place.receiver._next.get(0, 0) == place.buffer.samples_put == highest
        assert place.receiver.snapshot()[1] == ({0: highest} if highest else {})
    finally:
        place.die()


def test_streams_do_not_mix_and_each_stays_in_order(places):
    place = places(make("FIFO", 400))
    threads = [Thread(run, place, number, 40 + number) for number in range(5)]
    for thread in threads:
        thread.result()
    got = place.drained()
    for number in range(5):
        assert [each - 100 * number for each in got if each // 100 == number] == list(range(40 + number))


def test_an_old_connection_that_lags_is_told_that_all_has_ended(places):
    place = places(make("FIFO", 50))
    old, _ = place.hello(1)
    send(old, 1, range(2))
    run(place, 1, 6)
    with old:
        send(old, 1, range(2, 4))
        assert "ended" in finish(old)
    assert place.drained() == [100, 101, 102, 103, 104, 105]


def test_the_end_may_be_said_again(places):
    connection, _ = places(make("FIFO", 50)).hello(1)
    with connection:
        send(connection, 1, [0])
        for _ in range(3):
            assert "ended" in finish(connection)


def test_a_sample_that_was_refused_is_not_had(places):
    place = places(make("FIFO", 50))
    connection, _ = place.hello(0)
    with connection:
        connection.send({"sample": 0}, value(0))
        connection.send({"sample": 1}, [torch.zeros(2)])
        assert "a buffer stacks samples" in connection.receive()[0]["error"]
        connection.send({"sample": 2}, value(0))  # what comes after it is forgotten, too
    state, received = place.receiver.snapshot()
    assert (received, state["usage"]["put"]) == ({0: 1}, 1)
    run(place, 0, 3)
    assert place.drained() == [0, 1, 2]


def test_samples_of_other_dtypes_are_refused_also_where_they_come_together(places):
    place = places(make("FIFO", 50))
    connection, _ = place.hello(0)
    good = frame({"sample": 0}, *value(0))
    with connection:
        head = json.dumps({"sample": 1, "arrays": [["float64", [1]]]}).encode()
        connection._socket.sendall(good + struct.pack("<I", len(head)) + head + bytes(8))
        assert "a buffer stacks samples" in connection.receive()[0]["error"]
    assert place.receiver.snapshot()[1] == {0: 1}


def test_samples_of_pairs_carry_stream_and_step(places):
    place = places(make("SimPairedReservoir", 10), paired=True)
    run(place, 4, 2, paired=True)
    earlier, later = place.buffer.get()
    assert (earlier[:2], later[:2]) == ((4, 0), (4, 1))
    assert isinstance(earlier, TimeStep)
    assert [part.item() for part in (*earlier.data, *later.data)] == [400, 401]


# A buffer that is full


@pytest.mark.parametrize(("numbers_", "samples"), [(2**15, 60), (2**19, 16)])
def test_a_full_buffer_lets_the_sender_wait_and_go_on(numbers_, samples):
    sample, capacity = torch.zeros(numbers_), 3
    burst = -(-(2**20) // sample.nbytes)
    with fit(capacity=capacity, small=True) as running, stream(running.coordinator, 0) as opened:
        opened._workers[0]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        buffer = running.places[0].buffer

        def send_all():
            for number in range(samples):
                opened.send((sample + number,), None)
            opened.finish()

        sending = Thread(send_all)
        got = []
        for taken in (0, 2, 5):
            got += [int(buffer.get()[0][0]) for _ in range(taken)]
            until(lambda: buffer.samples_put == buffer.samples_got + capacity and buffer._room_made._waiters)
            until(lambda: opened._workers[0]._sending.locked())
            held = 2 + 2**19 // sample.nbytes  # by TCP, by the reader, and what is being sent
            assert opened.sent <= len(got) + capacity + burst + held
        got += [int(buffer.get()[0][0]) for _ in range(samples - len(got))]
        sending.result()
        assert got == list(range(samples))


class Came:
    """A connection on which everything has come already, or one message at a time; then its sender has left."""

    def __init__(self, messages, together):
        self._messages, self._together = iter(messages), iter(together)

    def receive(self):
        for message in self._messages:
            return message
        raise ConnectionLostError("it has left")

    def has_message(self):
        return next(self._together)


arrays = st.sampled_from(
    [torch.zeros(size, dtype=dtype) for size in (1, 2**17, 2**19) for dtype in (torch.int8, torch.half)]
)


@settings(max_examples=50, deadline=None)
@given(st.lists(arrays, max_size=8), st.integers(1, 30), st.lists(st.booleans(), max_size=20), st.booleans())
def test_what_comes_together_is_put_together_within_bounds_also_before_a_death(kinds, times, together, ends):
    samples = [array for array in kinds for _ in range(times)]
    sent = [({"sample": number}, [array, array]) for number, array in enumerate(samples)]
    came = [*sent, ({"end": True}, []), ({"sample": 99}, [])] if ends else sent
    bursts, lost = [], False
    try:
        for burst in receiver._bursts(Came(came, itertools.chain(together, itertools.repeat(True)))):
            bursts.append(burst)
    except ConnectionLostError:
        lost = True
    assert lost is not ends
    assert [header["sample"] for burst in bursts for header, _ in burst] == list(range(len(sent)))
    for burst in bursts:
        sizes = [sum(array.nbytes for array in own) for _, own in burst]
        assert len({(array.dtype, array.shape) for _, own in burst for array in own}) == 1
        assert 1 <= len(burst) <= 64
        assert sum(sizes[:-1]) < 2**20
    if not together:  # as much as may be
        assert all(
            receiver._kinds(one[-1]) != receiver._kinds(next_[0]) or len(one) == 64 or sum_of(one) >= 2**20
            for one, next_ in itertools.pairwise(bursts)
        )


def sum_of(burst):
    return sum(array.nbytes for _, own in burst for array in own)


def test_what_came_together_before_the_senders_death_is_put(places):
    place = places(make("FIFO", 50))
    hold = Hold(place.buffer, "_settle")
    connection, _ = place.hello(0)
    send(connection, 0, [0])
    hold.entered()  # what comes now is one burst
    send(connection, 0, range(1, 6))
    connection._socket.sendall(frame({"sample": 6}, *value(6))[:-2])  # it dies while it says this
    connection.close()
    hold.release()
    until(lambda: place.buffer.samples_put == 6)
    until(lambda: not place.receiver._listener._open)
    assert place.receiver.snapshot()[1] == {0: 6}
    assert place.drained() == list(range(6))


def test_a_burst_that_finds_room_for_some_is_had_as_far_as_it_was_put(places):
    place = places(make("FIFO", 3))
    burst = [({"sample": number}, list(value(number))) for number in range(5)]
    putting = Thread(place.receiver._put, 0, burst)
    until(lambda: place.buffer._room_made._waiters)
    state, received = place.receiver.snapshot()
    assert (state["usage"]["put"], received) == (3, {0: 3})
    place.receiver.discard()
    putting.result()
    assert place.receiver._next == {0: 3}
    assert place.receiver.snapshot()[1] == {0: 3}


def test_memory_that_runs_out_is_the_workers_fault(places):
    place = places(make("FIFO", 9))
    hold = Hold(place.buffer, "put_many", MemoryError("no more"))
    hold.release()
    connection, _ = place.hello(0)
    with connection:
        send(connection, 0, [0])
        assert "no more" in connection.receive()[0]["error"]
    assert [str(failure) for failure in place.failures] == ["no more"]
    run(place, 0, 1)
    assert place.drained() == [0]


def test_only_streams_of_samples_are_received(places):
    place = places(make("FIFO", 9))
    with Address(HERE, place.port, KEY).connect({"hello": "sender", "stream": 0}) as stranger:
        assert "for samples, not for sender" in stranger.receive()[0]["error"]


def test_strangers_cannot_put_anything(places):
    place = places(make("FIFO", 9))
    with Address(HERE, place.port, "other").connect({"hello": "samples", "stream": 0}) as stranger:
        stranger.send({"sample": 0}, value(1))
        assert "token" in stranger.receive()[0]["error"]
    run(place, 0, 1)
    assert place.drained() == [0]
