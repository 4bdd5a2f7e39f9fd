"""Connections transfer messages unchanged."""

import fcntl
import json
import socket
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.net.messages import PIECE, MessageError, pack
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Connection
from tests.buffers.kinds import Thread, until
from tests.online.bare_connections import codes_pair, connection_pair, encode_for

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
    "read-only": lambda tensor: tensor if tensor.dtype is torch.bfloat16 else read_only(tensor.numpy()),
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
    "a gradient": lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
}
UNUSUAL = {
    "conjugated": torch.Tensor.conj,
    "negated": torch._neg_view,
    "one of a column": lambda tensor: tensor[:1, 1],
}


def read_only(array):
    array.setflags(write=False)
    return array


def to_bytes(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


def check_same(received, sent):
    sent = sent if isinstance(sent, torch.Tensor) else torch.from_numpy(sent.copy())
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    assert to_bytes(received) == to_bytes(sent)


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
def test_messages_round_trip(sent):
    with connection_pair() as (one, other):
        for header, arrays in sent:
            one.send(header, arrays)
        for header, arrays in sent:
            received, tensors = other.receive()
            assert received == header
            for tensor, array in zip(tensors, arrays, strict=True):
                check_same(tensor, array)
        assert not other.has_message()


@pytest.mark.parametrize("layout", UNUSUAL)
def test_unusual_memory_layouts_are_preserved(layout):
    sent = UNUSUAL[layout](torch.arange(6.0).reshape(2, 3) * (2 + 1j))
    with connection_pair() as (one, other):
        one.send({}, [sent])
        check_same(other.receive()[1][0], sent)


@settings(max_examples=25, deadline=None)
@given(messages, st.lists(st.integers(1, 3), max_size=30))
def test_messages_are_reassembled_from_any_pieces(message, pieces):
    head, *rest = pack(*message)
    length, payload = struct.pack("<I", len(head)), b"".join(bytes(part) for part in rest)
    with connection_pair() as (one, other):
        data = length + head + one._codes.sign(length, head)
        data += payload + one._codes.sign(payload) if payload else b""
        while data:
            size = pieces.pop() if pieces else 1 + len(data) // 3
            one._socket.sendall(data[:size])
            data = data[size:]
        header, tensors = other.receive()
        assert header == message[0]
        assert [tensor.shape for tensor in tensors] == [tuple(array.shape) for array in message[1]]


def test_large_arrays_arrive_in_order_in_memory_of_the_receiver():
    sizes = [0, 1, 2**16, 2**16 + 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7]
    arrays = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    with connection_pair(small=True) as (one, other):
        sending = Thread(lambda: [one.send({"number": n}, arrays[::step]) for n, step in ((0, 1), (1, -1))])
        for number, expected in ((0, arrays), (1, arrays[::-1])):
            header, received = other.receive()
            assert header == {"number": number}
            assert all(torch.equal(got, sent) for got, sent in zip(received, expected, strict=True))
        sending.result()
        received[-2][:] = 7  # writable memory of the receiver


def test_concurrent_sends_do_not_interleave():
    each = 25
    with connection_pair(small=True) as (one, other):

        def send(thread):
            for number in range(each):
                one.send({"thread": thread, "number": number}, [torch.full((2**15,), thread), torch.tensor(number)])

        threads = [Thread(send, number) for number in range(4)]
        received = {thread: [] for thread in range(4)}
        for _ in range(4 * each):
            header, (large, number) = other.receive()
            assert (large == header["thread"]).all()
            assert int(number) == header["number"]
            received[header["thread"]].append(header["number"])
        assert all(numbers == list(range(each)) for numbers in received.values())
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
def test_unsupported_values_raise_before_anything_is_sent(bad):
    with connection_pair() as (one, other):
        with pytest.raises(TypeError):
            one.send(*bad)
        assert not other.has_message()
        one.send({"fine": 1})
        assert other.receive() == ({"fine": 1}, [])


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40), st.booleans())
def test_malformed_messages_raise(data, framed):
    data = struct.pack("<I", len(data)) + data if framed else data + b"\xff" * 4
    with connection_pair() as (one, other):
        data += one._codes.sign(data) if framed else b""
        one._socket.sendall(data)
        one._socket.shutdown(socket.SHUT_WR)
        with pytest.raises((MessageError, ConnectionLostError)):
            other.receive()


def test_sent_messages_arrive_after_close():
    with connection_pair() as (one, other):
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
def test_closing_either_end_unblocks_receive_and_send(who):
    with connection_pair() as ends:
        receiving = Thread(ends[0].receive)
        ends[who].close()
        with pytest.raises(ConnectionLostError):
            receiving.result()
    with connection_pair(small=True) as ends:
        sending = Thread(ends[0].send, {}, [torch.zeros(2**24, dtype=torch.uint8)])
        until(ends[1].has_message)
        ends[who].close()
        with pytest.raises(ConnectionLostError):
            sending.result()


def test_has_message_works_beyond_1024_open_files():
    with connection_pair() as (one, other):
        moved = Connection(socket.socket(fileno=fcntl.fcntl(other._socket, fcntl.F_DUPFD, 1100)), codes_pair()[1])
        with moved:
            assert not moved.has_message()
            one.send({})
            until(moved.has_message)


def test_headers_are_json():
    with connection_pair() as (one, other):
        one.send({"x": 1}, [torch.tensor([1.0, 2.0])])
        raw = other._socket.recv(2**16)
    (length,) = struct.unpack("<I", raw[:4])
    assert json.loads(raw[4 : 4 + length]) == {"x": 1, "arrays": [["float32", [2]]]}
    assert raw[4 + length + 32 : -32] == struct.pack("<2f", 1, 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_message_that_was_changed_on_its_way_is_refused(data):
    with connection_pair() as (one, other):
        sent = [encode_for(one, {"n": number}, torch.full((3,), float(number))) for number in range(3)]
        bad = bytearray(sent[0])
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
        arrives = data.draw(st.sampled_from([[bad], [sent[1]], [sent[0], sent[0]], [sent[0], sent[2]]]))
        for part in arrives:
            one._socket.sendall(part)
        one._socket.shutdown(socket.SHUT_WR)
        for _ in arrives[1:]:
            assert other.receive()[0] == {"n": 0}
        with pytest.raises(ConnectionLostError):
            other.receive()


def test_headers_that_are_too_large_are_neither_sent_nor_received():
    with connection_pair() as (one, other):
        with pytest.raises(
            MessageError, match=r"header has 1677\d{4} bytes; the maximum is 16777216: give it fewer"
        ):
            one.send({"text": "x" * 2**24})
        one.send({"fine": 1})
        assert other.receive() == ({"fine": 1}, [])
        one._socket.sendall(struct.pack("<I", 2**24 + 1))
        with pytest.raises(ConnectionLostError, match="not as it was sent: its header has 16777217 bytes"):
            other.receive()


def test_a_message_that_is_sent_back_is_refused():
    with connection_pair() as (one, other):
        one.send({"n": 1})
        one._socket.sendall(b"")
        other._socket.sendall(other._socket.recv(2**16))
        with pytest.raises(ConnectionLostError, match="authentication code is wrong"):
            one.receive()
