"""Connections transfer messages unchanged and in order, until they are lost."""

import os
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net.connection import Address, ConnectionLostError
from compss_train.net.messages import PIECE
from compss_train.net.server import MessageServer
from compss_train.net.sockets import LOOPBACK
from tests.buffers.kinds import Thread
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.plain_clients import no_threads_left
from tests.net.test_attacks import received_from

DTYPES = [
    *(
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
    ),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
LAYOUTS = {
    "dense": lambda tensor: tensor,
    "numpy": lambda tensor: tensor if tensor.dtype is torch.bfloat16 else tensor.numpy(),
    "transposed": lambda tensor: tensor.permute(list(reversed(range(tensor.dim())))),
    "strided": lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
    "reversed": lambda tensor: (
        tensor if tensor.dtype is torch.bfloat16 else np.asarray(np.flip(tensor.numpy()))
    ),
    "read-only": lambda tensor: (
        tensor if tensor.dtype is torch.bfloat16 else read_only(tensor.numpy())
    ),
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
    "a gradient": lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
}
UNUSUAL = {
    "conjugated": torch.Tensor.conj,
    "negated": lambda tensor: tensor.conj().imag,
    "one of a column": lambda tensor: tensor[:1, 1],
}


def read_only(array):
    array.setflags(write=False)
    return array


def to_bytes(tensor):
    plain = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


def check_same(received, sent):
    sent = sent if isinstance(sent, torch.Tensor) else torch.from_numpy(sent.copy())
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    assert to_bytes(received) == to_bytes(sent)


@st.composite
def blocks(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    raw = (
        torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 100
    )
    return LAYOUTS[layout](raw.to(dtype))


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
headers = st.dictionaries(
    st.text().filter(lambda key: key not in ("arrays", "proof")), values, min_size=1, max_size=4
)
messages = st.tuples(headers, st.lists(blocks(), max_size=4))


class Echo:
    """A server whose every message is sent back by ``answer``, and a client of it."""

    def __init__(self, address):
        self.server = MessageServer(address, "token")
        self.client = self.server.address.connect({"role": "x"})
        self.peer, header, _ = self.receive()
        assert header == {"role": "x"}

    def receive(self):
        # It looks for lost clients when it has waited.
        while (received := self.server.receive(0.05)) is None:
            pass
        return received

    def answer(self, count=1):
        """Send this many messages back; return them."""
        received = [
            (header, tensors_of(arrays))
            for _, header, arrays in (self.receive() for _ in range(count))
        ]
        assert all(self.peer.send(*message) for message in received)
        return received


def tensors_of(arrays):
    return [array.tensor() for array in arrays]


@pytest.fixture(params=[None, LOOPBACK], ids=["socket file", "TCP"])
def echo(request):
    with echo_at(request.param) as echo:
        yield echo


@contextmanager
def echo_at(address):
    with no_threads_left():
        echo = Echo(address)
        with echo.server, echo.client:
            yield echo


@given(st.lists(messages, min_size=1, max_size=4), st.sampled_from([None, LOOPBACK]))
def test_messages_round_trip(sent, address):
    with echo_at(address) as echo:
        for message in sent:
            echo.client.send(*message)
        answered = echo.answer(len(sent))
        returned = [
            (header, tensors_of(arrays)) for header, arrays in (echo.client.receive() for _ in sent)
        ]
        for received in (answered, returned):
            for (header, tensors), (expected, arrays) in zip(received, sent, strict=True):
                assert header == expected
                for tensor, array in zip(tensors, arrays, strict=True):
                    check_same(tensor, array)


@pytest.mark.parametrize("layout", UNUSUAL)
def test_unusual_memory_layouts_are_preserved(echo, layout):
    sent = UNUSUAL[layout](torch.arange(6.0).reshape(2, 3) * (2 + 1j))
    echo.client.send({"n": 1}, [sent])
    check_same(echo.answer()[0][1][0], sent)


def test_large_arrays_arrive_in_order_in_memory_of_the_receiver(echo):
    sizes = [0, 1, 2**16, 2**16 + 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7]
    arrays = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    sent = [array.clone() for array in arrays]
    for number, step in ((0, 1), (1, -1)):
        echo.client.send({"number": number}, sent[::step])
    for array in sent:
        array.zero_()  # what was sent is a copy
    for expected in (arrays, arrays[::-1]):
        [(_, received)] = echo.answer()
        assert all(torch.equal(got, own) for got, own in zip(received, expected, strict=True))
    received[-2][:] = 7  # writable memory of the receiver


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
def test_unsupported_values_raise_before_anything_is_sent(echo, bad):
    with pytest.raises(TypeError):
        echo.client.send(*bad)
    with pytest.raises(
        ValueError, match=r"header has 1,0.* bytes; the maximum is 1,048,576: give fewer arrays"
    ):
        echo.client.send({"text": "x" * 2**20})
    echo.client.send({"fine": 1})
    assert echo.answer() == [({"fine": 1}, [])]


def test_sent_messages_arrive_after_close_and_before_the_disconnect(echo):
    for number in range(50):
        echo.client.send({"n": number}, [torch.ones(1000)])
    for _ in range(2):
        echo.client.close()
    assert [echo.receive()[1] for _ in range(50)] == [{"n": number} for number in range(50)]
    assert echo.receive() == (echo.peer, None, [])
    assert not echo.peer.send({"too": "late"})
    assert echo.server.receive(0.1) is None  # once


def test_a_lost_connection_raises_after_the_last_message(echo):
    echo.peer.send({"last": 1})
    echo.server.close()
    assert echo.client.receive(LIMIT) == ({"last": 1}, [])
    for act in (echo.client.receive, echo.client.receive, lambda: echo.client.send({"n": 1})):
        with pytest.raises(ConnectionLostError, match="is lost"):
            act()


def test_what_was_sent_before_the_end_arrives_though_nobody_waited(echo):
    assert echo.client.receive(0.0) is None
    for number in range(3):
        echo.peer.send({"n": number})
    echo.server.close()
    wait_until(lambda: echo.client.is_lost)
    assert [echo.client.receive(LIMIT) for _ in range(3)] == [
        ({"n": number}, []) for number in range(3)
    ]
    with pytest.raises(ConnectionLostError, match="is lost"):
        echo.client.receive(LIMIT)


def test_the_end_of_the_server_unblocks_receive_and_send(echo):
    receiving = Thread(echo.client.receive)
    echo.server.close()
    with pytest.raises(ConnectionLostError):
        receiving.result()


def test_a_send_to_a_server_that_does_not_read_waits_and_ends_with_it(echo):
    def send_many():
        for number in range(10**6):
            echo.client.send({"n": number})

    sending = Thread(send_many)
    sending.join(0.5)
    assert sending.is_alive()
    echo.server.close()
    with pytest.raises(ConnectionLostError):
        sending.result()


def _cannot_start(thread):
    raise RuntimeError


def test_a_connection_is_closed_where_no_thread_can_be_started(monkeypatch):
    """As at the end of a program in Python 3.12."""
    with MessageServer(LOOPBACK, "token") as server:
        connection = server.address.connect({})
        peer, _, _ = received_from(server)
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", _cannot_start)
            connection.close()
        assert received_from(server) == (peer, None, [])


def test_receive_returns_none_after_its_timeout(echo):
    assert echo.client.receive(0) is echo.client.receive(0.02) is None
    echo.peer.send({})  # only asks whether the client is there
    assert echo.client.receive(0.05) is None


def test_a_disconnected_client_is_found_among_others(echo):
    others = [echo.server.address.connect({"n": number}) for number in range(5)]
    peers = {header["n"]: peer for peer, header, _ in (echo.receive() for _ in others)}
    others[3].close()
    assert echo.receive() == (peers[3], None, [])
    with echo.server.address.connect({"n": 9}):  # it gets the file descriptor of the other one
        assert echo.receive()[1] == {"n": 9}
        assert echo.server.receive(0.2) is None
        for number in (0, 1, 2, 4):
            others[number].close()
        assert {echo.receive()[0] for _ in range(4)} == {peers[number] for number in (0, 1, 2, 4)}


@pytest.mark.parametrize(
    "url",
    [
        "foo",
        "tcp://127.0.0.1",
        "udp://a:1",
        "tcp://a:b",
        "tcp://a:65536",
        f"ipc:///{'x' * 200}",
        3,
        None,
    ],
)
def test_what_is_no_address_is_a_clear_error_and_leaves_no_open_files(url):
    def fail():
        with pytest.raises(ValueError, match=f"address={url!r}: "):
            Address(url, "token").connect({})

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    fail()
    before = open_files()
    for _ in range(50):  # far more than connections of earlier tests that are closed meanwhile
        fail()
    wait_until(lambda: open_files() <= before)


def test_nobody_listens():
    with MessageServer(None, "token") as server:
        pass
    for url in (server.address.url, "tcp://127.0.0.1:9"):
        with pytest.raises(ConnectionRefusedError, match=f"nobody listens at {url}"):
            Address(url, "token").connect({"role": "x"})
