"""Connections: what is sent arrives as it was, whoever else connects and whatever they say."""

import collections
import contextlib
import fcntl
import itertools
import json
import socket
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.online import connection as connections
from compss_train.online.connection import Address, Connection, ConnectionLostError, Listener
from compss_train.online.director import Director
from compss_train.wire import PIECE, WireError, pack
from tests.buffers.kinds import DEADLINE, Hold, Thread, until
from tests.online.parts import HERE, TOKEN, bare, frame, nothing_left, pair

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
LAYOUTS = {
    "dense": lambda tensor: tensor,
    "numpy": lambda tensor: tensor if tensor.dtype is torch.bfloat16 else tensor.numpy(),
    "transposed": lambda tensor: tensor.permute(list(reversed(range(tensor.dim())))),
    "strided": lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
    "reversed": lambda tensor: tensor if tensor.dtype is torch.bfloat16 else np.asarray(np.flip(tensor.numpy())),
    "read-only": lambda tensor: tensor if tensor.dtype is torch.bfloat16 else frozen(tensor.numpy()),
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
    "a gradient": lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
}
ODD = {"conjugated": torch.Tensor.conj, "negated": torch._neg_view, "one of a column": lambda tensor: tensor[:1, 1]}


def frozen(array):
    array.setflags(write=False)
    return array


def bytes_of(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


def check_same(came, sent):
    sent = sent if isinstance(sent, torch.Tensor) else torch.from_numpy(sent.copy())
    assert (came.dtype, came.shape) == (sent.dtype, sent.shape)
    assert bytes_of(came) == bytes_of(sent)


@st.composite
def blocks(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(sorted(LAYOUTS)))
    raw = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 100
    return LAYOUTS[layout](raw.to(dtype))


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
headers = st.dictionaries(st.text().filter(lambda key: key != "arrays"), values, max_size=4)
messages = st.tuples(headers, st.lists(blocks(), max_size=4))


@settings(max_examples=40, deadline=None)
@given(st.lists(messages, min_size=1, max_size=4))
def test_messages_arrive_as_they_were(sent):
    with pair() as (one, other):
        for header, arrays in sent:
            one.send(header, arrays)
        for header, arrays in sent:
            came, tensors = other.receive()
            assert came == header
            for tensor, array in zip(tensors, arrays, strict=True):
                check_same(tensor, array)
        assert not other.has_message()


@pytest.mark.parametrize("layout", ODD)
def test_what_lies_oddly_in_memory_arrives_as_it_is(layout):
    sent = ODD[layout](torch.arange(6.0).reshape(2, 3) * (2 + 1j))
    with pair() as (one, other):
        one.send({}, [sent])
        check_same(other.receive()[1][0], sent)


@settings(max_examples=25, deadline=None)
@given(messages, st.lists(st.integers(1, 3), max_size=30))
def test_messages_may_come_in_any_pieces(message, pieces):
    frames = pack(*message)
    data = struct.pack("<I", len(frames[0])) + b"".join(bytes(part) for part in frames)
    with pair() as (one, other):
        while data:
            size = pieces.pop() if pieces else 1 + len(data) // 3
            one._socket.sendall(data[:size])
            data = data[size:]
        header, tensors = other.receive()
        assert header == message[0]
        assert [tensor.shape for tensor in tensors] == [tuple(array.shape) for array in message[1]]


def test_large_arrays_arrive_in_turn_and_what_is_sent_is_not_kept():
    sizes = [0, 1, 2**16, 2**16 + 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7]
    arrays = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    with pair(small=True) as (one, other):
        sending = Thread(lambda: [one.send({"number": n}, arrays[::step]) for n, step in ((0, 1), (1, -1))])
        for number, expected in ((0, arrays), (1, arrays[::-1])):
            header, came = other.receive()
            assert header == {"number": number}
            assert all(torch.equal(got, sent) for got, sent in zip(came, expected, strict=True))
        sending.result()
        came[-2][:] = 7  # memory of the receiver's own


def test_threads_that_send_at_a_time_do_not_mix_their_messages():
    each = 25
    with pair(small=True) as (one, other):

        def send(thread):
            for number in range(each):
                one.send({"thread": thread, "number": number}, [torch.full((2**15,), thread), torch.tensor(number)])

        threads = [Thread(send, number) for number in range(4)]
        came = {thread: [] for thread in range(4)}
        for _ in range(4 * each):
            header, (large, number) = other.receive()
            assert (large == header["thread"]).all()
            assert int(number) == header["number"]
            came[header["thread"]].append(header["number"])
        assert all(numbers == list(range(each)) for numbers in came.values())
        assert [thread.result() for thread in threads] == [None] * 4


@pytest.mark.parametrize(
    "bad",
    [
        ({}, [torch.zeros(2, dtype=torch.uint16)]),
        ({}, [np.array(["text"])]),
        ({}, [torch.zeros(2), np.array([None])]),
        ({"what": object()}, []),
    ],
    ids=["uint16", "text", "object", "header"],
)
def test_what_cannot_be_sent_is_an_error_before_anything_is_sent(bad):
    with pair() as (one, other):
        with pytest.raises(TypeError):
            one.send(*bad)
        assert not other.has_message()
        one.send({"fine": 1})
        assert other.receive() == ({"fine": 1}, [])


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40), st.booleans())
def test_what_is_no_message_is_an_error(data, framed):
    data = struct.pack("<I", len(data)) + data if framed else data + b"\xff" * 4
    with pair() as (one, other):
        one._socket.sendall(data)
        one._socket.shutdown(socket.SHUT_WR)
        with pytest.raises((WireError, ConnectionLostError)):
            other.receive()


def test_what_was_sent_before_closing_arrives_and_then_the_end():
    with pair() as (one, other):
        one.send({"last": 1}, [torch.ones(1000)])
        one.close()
        one.close()
        assert other.receive()[0] == {"last": 1}
        with pytest.raises(ConnectionLostError):
            other.receive()
        for act in (lambda: one.send({}), one.receive):
            with pytest.raises(ConnectionLostError):
                act()


@pytest.mark.parametrize("who", [0, 1], ids=["own", "other"])
def test_closing_either_end_wakes_who_receives_and_who_sends(who):
    with pair() as ends:
        receiving = Thread(ends[0].receive)
        ends[who].close()
        with pytest.raises(ConnectionLostError):
            receiving.result()
    with pair(small=True) as ends:
        sending = Thread(ends[0].send, {}, [torch.zeros(2**24, dtype=torch.uint8)])
        until(ends[1].has_message)
        ends[who].close()
        with pytest.raises(ConnectionLostError):
            sending.result()


def test_a_program_with_many_open_files_can_ask_for_messages():
    with pair() as (one, other):
        moved = Connection(socket.socket(fileno=fcntl.fcntl(other._socket, fcntl.F_DUPFD, 1100)))
        with moved:
            assert not moved.has_message()
            one.send({})
            until(moved.has_message)


# Listening


class Echo:
    """A listener whose connections are told what they say."""

    def __init__(self):
        self.listener = Listener(HERE, 0, TOKEN, self.serve)
        self.port = self.listener.address.port
        self.hellos = []

    def serve(self, connection, hello):
        self.hellos.append(hello)
        while True:
            connection.send(*connection.receive())

    def check(self, connection):
        connection.send({"what": "ping"}, [torch.arange(3)])
        header, [array] = connection.receive()
        assert (header, array.tolist()) == ({"what": "ping"}, [0, 1, 2])


@pytest.fixture
def echo():
    with nothing_left():
        echo = Echo()
        echo.listener.start()
        with echo.listener:
            yield echo


GARBAGE = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(64),
    "an empty header": struct.pack("<I", 0),
    "a huge header": struct.pack("<I", 2**32 - 1) + b"x" * 1000,
    "a header just too large": struct.pack("<I", 2**24 + 1),
    "no json": struct.pack("<I", 3) + b"{{{",
    "no utf-8": struct.pack("<I", 4) + b'"\xff\xfe"',
    "nested": struct.pack("<I", 200_000) + b"[" * 200_000,
    "a list": frame({})[:4].replace(b"\x0e", b"\x02") + b"[]",
    "a header that is cut": frame({"hello": "x", "token": TOKEN})[:-3],
    "no token": frame({"hello": "x"}),
    "a wrong token": frame({"hello": "x", "token": TOKEN + "x"}),
    "a token that is no text": frame({"hello": "x", "token": {"a": [1]}}),
    "a token that is no unicode": frame({"hello": "x", "token": "\ud800"}),
    "arrays": frame({"hello": "x", "token": TOKEN}, torch.ones(1000)),
    "empty arrays": frame({"hello": "x", "token": TOKEN}, torch.ones(0)),
    "arrays too large": frame({"hello": "x", "token": "", "arrays": [["float32", [2**60]]]}),
    "arrays beyond all numbers": frame({"token": TOKEN, "arrays": [["float32", [10**40]]]}),
    "arrays of nothing known": frame({"token": TOKEN, "arrays": [["object", [1]], [[], {}], 3]}),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_strangers_are_let_go_and_harm_nobody(echo, garbage):
    with echo.listener.address.connect({"hello": "x"}) as before, bare(echo.port) as stranger:
        echo.check(before)
        stranger.sendall(GARBAGE[garbage])
        stranger.shutdown(socket.SHUT_WR)
        try:
            answer = b"".join(iter(lambda: stranger.recv(2**16), b""))
        except ConnectionResetError:  # what it has sent was not read
            answer = b""
        if "token" in garbage:
            assert b"error" in answer or "unicode" in garbage
        assert TOKEN.encode() not in answer
        echo.check(before)
        with echo.listener.address.connect({"hello": "y"}) as after:
            echo.check(after)
    assert [hello["hello"] for hello in echo.hellos] == ["x", "y"]


def test_who_sends_endlessly_without_a_token_is_cut_off(echo):
    with bare(echo.port) as stranger:
        stranger.sendall(frame({"token": TOKEN, "arrays": [["uint8", [2**62]]]}))
        with pytest.raises(OSError):
            collections.deque(map(stranger.sendall, itertools.repeat(bytes(2**20))), 0)


@pytest.mark.parametrize(
    "garbage", ["a huge header", "a header just too large", "arrays", "arrays too large", "zeros"]
)
def test_strangers_are_not_listened_to_any_longer_than_it_takes(echo, garbage):
    with bare(echo.port) as stranger, contextlib.suppress(ConnectionResetError):
        stranger.settimeout(4)
        stranger.sendall(GARBAGE[garbage][:200])
        assert stranger.recv(1) == b""


def test_a_wrong_token_is_told(echo):
    with Address(HERE, echo.port, TOKEN + " ").connect({"hello": "x"}) as connection:
        assert "token" in connection.receive()[0]["error"]
        with pytest.raises(ConnectionLostError):
            connection.receive()
    assert echo.hellos == []


@pytest.mark.parametrize("said", [b"", frame({"hello": "x", "token": TOKEN})[:-1]], ids=["nothing", "half"])
def test_who_connects_and_does_not_say_hello_is_let_go(echo, monkeypatch, said):
    monkeypatch.setattr(connections, "_HELLO_SECONDS", 0.05)
    with bare(echo.port) as silent, echo.listener.address.connect({"hello": "x"}) as other:
        silent.sendall(said)
        echo.check(other)
        assert silent.recv(1) == b""
        with bare(echo.port) as another:
            assert another.recv(1) == b""
        echo.check(other)  # whose silence after the hello is no matter


def test_who_connects_before_the_start_is_served_then():
    with nothing_left():
        echo = Echo()
        with echo.listener, echo.listener.address.connect({"hello": "early"}) as early:
            early.send({"n": 1})
            assert not early.has_message()
            echo.listener.start()
            assert early.receive()[0] == {"n": 1}


@pytest.mark.parametrize("started", [True, False])
def test_closing_closes_all_connections_and_may_be_done_again(started):
    with nothing_left():
        echo = Echo()
        if started:
            echo.listener.start()
        talking, silent = echo.listener.address.connect({"hello": "x"}), bare(echo.port)
        if started:
            echo.check(talking)
            until(lambda: len(echo.listener._open) == 2)
        receiving = Thread(talking.receive)
        echo.listener.close()
        echo.listener.close()
        with pytest.raises(ConnectionLostError):
            receiving.result()
        with pytest.raises(OSError):
            echo.listener.address.connect({"hello": "x"}).receive()
        talking.close()
        silent.close()


def test_who_is_accepted_while_the_listener_closes_is_let_go(monkeypatch):
    with nothing_left():
        hold = Hold(connections, "Connection")
        echo = Echo()
        echo.listener.start()
        with bare(echo.port) as stranger:
            hold.entered()
            echo.listener.close()
            hold.release()
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


def test_an_address_that_is_taken_is_an_error_that_names_it():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at {HERE}:{port}"):
            Listener(HERE, port, TOKEN, lambda *_: None)


# The director


@pytest.fixture
def kept():
    return []


@pytest.fixture
def director(kept):
    with nothing_left(), Director(HERE, lambda worker, saved: kept.append((worker, saved.tolist()))) as director:
        yield director


def test_every_director_has_a_secret_of_its_own_that_is_not_shown(director):
    with Director(HERE, lambda *_: None) as other:
        secrets = {director.address.token, other.address.token}
    assert len(secrets) == 2
    assert all(len(secret) >= 16 and secret not in repr([director.address, other.address]) for secret in secrets)


def test_senders_are_let_in_by_their_own_token_and_only_as_senders(director):
    director.let_in_senders(HERE, 0, TOKEN)
    door, own = director._listeners[-1].address, director.address
    for port, token, role, reason in [
        (door.port, own.token, "sender", "the token"),
        (own.port, TOKEN, "sender", "the token"),
        *(
            (door.port, TOKEN, role, f"for sender, not for {role}")
            for role in ("worker", "simulation", "evaluation")
        ),
    ]:
        with Address(HERE, port, token).connect({"hello": role, "number": 0}) as stranger:
            assert reason in stranger.receive()[0]["error"]
            with pytest.raises(ConnectionLostError):
                stranger.receive()
    assert director.next(0) is None
    with door.connect({"hello": "sender", "name": "a"}):
        assert director.next(DEADLINE).peer.name == "a"
    assert director.next(DEADLINE).header is None


@pytest.mark.parametrize("role", ["worker", "sender", "simulation"])
def test_what_workers_save_is_kept_before_it_is_told_of_and_nobody_elses(director, kept, role):
    with director.address.connect({"hello": role, "number": 3}) as peer:
        director.next(DEADLINE)
        peer.send({"saved": [[0, 5]]}, [torch.arange(3)])
        said = director.next(DEADLINE)
    assert said.header == {"saved": [[0, 5]]}
    assert (kept, len(said.arrays)) == (([(3, [0, 1, 2])], 0) if role == "worker" else ([], 1))


def test_something_large_is_told_while_others_are_heard(director):
    large = torch.zeros(2**23, dtype=torch.uint8)
    with director.address.connect({"hello": "worker", "number": 0}) as peer:
        event = director.next(DEADLINE)
        event.peer.tell_aside({"go": True}, lambda: [large])  # which is more than TCP holds
        peer.send({"n": 1})
        assert director.next(DEADLINE).header == {"n": 1}
        header, [came] = peer.receive()
        assert (header, len(came)) == ({"go": True}, len(large))


def test_what_peers_say_comes_in_the_order_of_each_and_ends_with_none(director):
    with director.address.connect({"hello": "sender", "name": "a"}) as one:
        first = director.next(DEADLINE)
        assert (first.peer.role, first.peer.name, first.peer.number) == ("sender", "a", None)
        for number in range(5):
            one.send({"n": number}, [torch.tensor(number)])
        first.peer.tell({"hi": 1})
        assert one.receive()[0] == {"hi": 1}
    said = [director.next(DEADLINE) for _ in range(6)]
    assert [each.header for each in said] == [*({"n": number} for number in range(5)), None]
    assert [int(each.arrays[0]) for each in said[:-1]] == list(range(5))
    assert {each.peer for each in said} == {first.peer}
    first.peer.tell({"nobody": "hears it"})
    assert director.next(0) is None


@pytest.mark.parametrize(
    "said",
    [b"\xff" * 9, frame({"arrays": [["uint8", [2**60]]]}), frame({"arrays": [["uint8", [-1]]]}), b"\1"],
    ids=["garbage", "an array too large", "no shape", "a length that is cut"],
)
def test_a_peer_that_says_what_is_no_message_leaves(director, said):
    with director.address.connect({"hello": "sender"}) as peer:
        assert director.next(DEADLINE).header["hello"] == "sender"
        peer._socket.sendall(said)
        peer._socket.shutdown(socket.SHUT_WR)
        assert director.next(DEADLINE).header is None
        with pytest.raises(ConnectionLostError):
            peer.receive()


def test_a_hello_that_does_not_say_what_it_is_does_no_harm(director):
    with director.address.connect({}) as peer, pytest.raises(ConnectionLostError):
        peer.receive()
    assert director.next(0) is None


def test_headers_are_json_and_nothing_is_pickled():
    with pair() as (one, other):
        one.send({"x": 1}, [torch.tensor([1.0, 2.0])])
        raw = other._socket.recv(2**16)
    (length,) = struct.unpack("<I", raw[:4])
    assert json.loads(raw[4 : 4 + length]) == {"x": 1, "arrays": [["float32", [2]]]}
    assert raw[4 + length :] == struct.pack("<2f", 1, 2)
