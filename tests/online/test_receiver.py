"""Receivers put every sample once, with interrupted connections and full buffers."""

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
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Address
from tests.buffers.kinds import Hold, Thread, make, until
from tests.online.bare_connections import HERE, KEY, BareClient, encode_for, no_threads_left
from tests.online.sample_streams import end_stream, number_sample, send_messages, send_stream, simulation_stream
from tests.online.stub_fits import StubWorker, stub_fit

# Every sample is put once


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1), st.booleans()), max_size=4), st.booleans())
def test_each_sample_of_an_interrupted_and_repeated_stream_is_put_once(cuts, paired):
    with no_threads_left():
        stub = StubWorker(make("SimPairedReservoir" if paired else "FIFO", 50), paired=paired)
        left = []
        try:
            for samples, share, dead in cuts:
                sock = BareClient(stub.port, KEY)
                sock.send({"role": "samples", "stream": 3})
                data = b"".join(
                    sock.encode({"sample": number, "step": number}, *number_sample(number))
                    for number in range(sock.read()["next"], samples)
                )
                cut = int(share * len(data))
                sock.sendall(data[:cut])
                if dead:
                    sock.close()
                else:  # thought dead: its remaining data arrive while the next one sends
                    left.append((sock, data[cut:]))
            others = [Thread(sock.sendall, data) for sock, data in left]
            connection, offset = stub.connect(3)
            with connection:
                for number in range(offset, 8):
                    connection.send({"sample": number, "step": number}, number_sample(number))
                assert "ended" in end_stream(connection)
            for other, (sock, _) in zip(others, left, strict=True):
                other.result()
                sock.close()
            assert stub.buffer.samples_put == 8
            if not paired:
                assert stub.drain() == list(range(8))
        finally:
            stub.close()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["old", "new", "newer"]), max_size=16),
    st.integers(0, 5),
    st.integers(0, 5),
    st.randoms(),
)
def test_connections_of_one_stream_may_interleave(schedule, first, second, random):
    stub = StubWorker(make("FIFO", 50))
    try:
        # Each starts at the worker's offset at its handshake, at some moment of the one before.
        counters = {"old": itertools.count(), "new": None, "newer": None}
        sent = {"old": 0, "new": 0, "newer": 0}
        waits = {"old": 0, "new": first, "newer": first + second}
        for turn, who in enumerate(schedule):
            if turn >= waits[who]:
                if counters[who] is None:
                    counters[who] = itertools.count(stub.receiver._offsets.get(0, 0))
                burst = [
                    ({"sample": next(counters[who])}, list(number_sample(turn)))
                    for _ in range(random.randint(1, 3))
                ]
                stub.receiver._put(0, burst)
                sent[who] += 1
        highest = max(next(count) for count in counters.values() if count is not None)
        assert stub.receiver._offsets.get(0, 0) == stub.buffer.samples_put == highest
        assert stub.receiver.snapshot()[1] == ({0: highest} if highest else {})
    finally:
        stub.close()


def test_each_stream_keeps_its_order(make_stub):
    stub = make_stub(make("FIFO", 400))
    threads = [Thread(send_stream, stub, number, 40 + number) for number in range(5)]
    for thread in threads:
        thread.result()
    got = stub.drain()
    for number in range(5):
        assert [each - 100 * number for each in got if each // 100 == number] == list(range(40 + number))


def test_a_delayed_connection_of_a_completed_stream_is_acknowledged(make_stub):
    stub = make_stub(make("FIFO", 50))
    old, _ = stub.connect(1)
    send_messages(old, 1, range(2))
    send_stream(stub, 1, 6)
    with old:
        send_messages(old, 1, range(2, 4))
        assert "ended" in end_stream(old)
    assert stub.drain() == [100, 101, 102, 103, 104, 105]


def test_the_end_message_may_be_repeated(make_stub):
    connection, _ = make_stub(make("FIFO", 50)).connect(1)
    with connection:
        send_messages(connection, 1, [0])
        for _ in range(3):
            assert "ended" in end_stream(connection)


def test_a_rejected_sample_is_not_counted(make_stub):
    stub = make_stub(make("FIFO", 50))
    connection, _ = stub.connect(0)
    with connection:
        connection.send({"sample": 0}, number_sample(0))
        connection.send({"sample": 1}, [torch.zeros(2)])
        assert "a buffer stacks samples" in connection.receive()[0]["error"]
        connection.send({"sample": 2}, number_sample(0))  # samples after it are discarded, too
    state, received = stub.receiver.snapshot()
    assert (received, state["usage"]["put"]) == ({0: 1}, 1)
    send_stream(stub, 0, 3)
    assert stub.drain() == [0, 1, 2]


def test_other_dtypes_are_rejected_within_a_burst(make_stub):
    stub = make_stub(make("FIFO", 50))
    connection, _ = stub.connect(0)
    with connection:
        good = encode_for(connection, {"sample": 0}, *number_sample(0))
        head = json.dumps({"sample": 1, "arrays": [["float64", [1]]]}).encode()
        head = struct.pack("<I", len(head)) + head
        sign = connection._codes.sign
        connection._socket.sendall(good + head + sign(head) + bytes(8) + sign(bytes(8)))
        assert "a buffer stacks samples" in connection.receive()[0]["error"]
    assert stub.receiver.snapshot()[1] == {0: 1}


def test_paired_samples_carry_stream_and_step(make_stub):
    stub = make_stub(make("SimPairedReservoir", 10), paired=True)
    send_stream(stub, 4, 2, paired=True)
    earlier, later = stub.buffer.get()
    assert (earlier[:2], later[:2]) == ((4, 0), (4, 1))
    assert isinstance(earlier, TimeStep)
    assert [part.item() for part in (*earlier.data, *later.data)] == [400, 401]


# Full buffers and bursts


@pytest.mark.parametrize(("length", "samples"), [(2**15, 60), (2**19, 16)])
def test_a_full_buffer_blocks_the_sender(length, samples):
    sample, capacity = torch.zeros(length), 3
    burst = -(-(2**20) // sample.nbytes)
    with stub_fit(capacity=capacity, small=True) as running, simulation_stream(running.coordinator, 0) as opened:
        opened._workers[0]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        buffer = running.workers[0].buffer

        def send_all():
            for number in range(samples):
                opened.send((sample + number,), None)
            opened.finish()

        sending = Thread(send_all)
        got = []
        for taken in (0, 2, 5):
            got += [int(buffer.get()[0][0]) for _ in range(taken)]
            until(lambda: buffer.samples_put == buffer.samples_got + capacity and buffer._not_full.number)
            until(lambda: opened._workers[0]._send_lock.locked())
            held = 2 + 2**19 // sample.nbytes  # in TCP, in the reader, and in the pending send
            assert opened.sent <= len(got) + capacity + burst + held
        got += [int(buffer.get()[0][0]) for _ in range(samples - len(got))]
        sending.result()
        assert got == list(range(samples))


class ScriptedConnection:
    """A connection whose messages arrive together or one by one; then its sender disconnects."""

    def __init__(self, messages, together):
        self._messages, self._together = iter(messages), iter(together)

    def receive(self):
        for message in self._messages:
            return message
        raise ConnectionLostError("disconnected")

    def has_message(self):
        return next(self._together)


arrays = st.sampled_from(
    [torch.zeros(size, dtype=dtype) for size in (1, 2**17, 2**19) for dtype in (torch.int8, torch.half)]
)


@settings(max_examples=50, deadline=None)
@given(st.lists(arrays, max_size=8), st.integers(1, 30), st.lists(st.booleans(), max_size=20), st.booleans())
def test_bursts_are_bounded_and_complete_before_a_disconnect(kinds, times, together, ends):
    samples = [array for array in kinds for _ in range(times)]
    sent = [({"sample": number}, [array, array]) for number, array in enumerate(samples)]
    incoming = [*sent, ({"end": True}, []), ({"sample": 99}, [])] if ends else sent
    bursts, lost = [], False
    try:
        for burst in receiver._bursts(
            ScriptedConnection(incoming, itertools.chain(together, itertools.repeat(True)))
        ):
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
    if not together:  # bursts are as large as possible
        assert all(
            receiver._layout(one[-1]) != receiver._layout(next_[0]) or len(one) == 64 or sum_of(one) >= 2**20
            for one, next_ in itertools.pairwise(bursts)
        )


def sum_of(burst):
    return sum(array.nbytes for _, own in burst for array in own)


def test_a_burst_before_a_disconnect_is_put(make_stub):
    stub = make_stub(make("FIFO", 50))
    hold = Hold(stub.buffer, "_finish_put")
    connection, _ = stub.connect(0)
    send_messages(connection, 0, [0])
    hold.entered()  # later samples form one burst
    send_messages(connection, 0, range(1, 6))
    connection._socket.sendall(encode_for(connection, {"sample": 6}, *number_sample(6))[:-2])  # it dies meanwhile
    connection.close()
    hold.release()
    until(lambda: stub.buffer.samples_put == 6)
    until(lambda: not stub.receiver._listener._trusted)
    assert stub.receiver.snapshot()[1] == {0: 6}
    assert stub.drain() == list(range(6))


def test_a_partially_put_burst_counts_up_to_its_last_put(make_stub):
    stub = make_stub(make("FIFO", 3))
    burst = [({"sample": number}, list(number_sample(number))) for number in range(5)]
    putting = Thread(stub.receiver._put, 0, burst)
    until(lambda: stub.buffer._not_full.number)
    state, received = stub.receiver.snapshot()
    assert (state["usage"]["put"], received) == (3, {0: 3})
    stub.receiver.discard()
    putting.result()
    assert stub.receiver._offsets == {0: 3}
    assert stub.receiver.snapshot()[1] == {0: 3}


def test_running_out_of_memory_is_reported_as_the_workers_failure(make_stub):
    stub = make_stub(make("FIFO", 9))
    hold = Hold(stub.buffer, "put_many", MemoryError("no more"))
    hold.release()
    connection, _ = stub.connect(0)
    with connection:
        send_messages(connection, 0, [0])
        assert "no more" in connection.receive()[0]["error"]
    assert [str(failure) for failure in stub.failures] == ["no more"]
    send_stream(stub, 0, 1)
    assert stub.drain() == [0]


def test_only_the_role_samples_is_accepted(make_stub):
    stub = make_stub(make("FIFO", 9))
    with Address(HERE, stub.port, KEY).connect({"role": "sender", "stream": 0}) as rejected:
        assert "role 'sender'; this address accepts 'samples'" in rejected.receive()[0]["error"]


def test_clients_with_a_wrong_token_cannot_put_samples(make_stub):
    stub = make_stub(make("FIFO", 9))
    with pytest.raises(PermissionError, match="wrong token"):
        Address(HERE, stub.port, "other").connect({"role": "samples", "stream": 0})
    send_stream(stub, 0, 1)
    assert stub.drain() == [0]
