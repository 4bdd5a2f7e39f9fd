"""Listeners serve clients with the token, and disconnect all others."""

import collections
import contextlib
import itertools
import socket
import struct

import pytest
import torch

from compss_train.online import connection as connections
from compss_train.online.connection import Address, ConnectionLostError, Listener
from tests.buffers.kinds import Hold, Thread, until
from tests.online.bare_connections import HERE, TOKEN, encode_message, no_threads_left, raw_socket


class Echo:
    """A listener that sends every message back."""

    def __init__(self):
        self.listener = Listener(HERE, 0, token=TOKEN, handler=self.serve)
        self.port = self.listener.address.port
        self.handshakes = []

    def serve(self, connection, handshake):
        self.handshakes.append(handshake)
        while True:
            connection.send(*connection.receive())

    def check(self, connection):
        connection.send({"what": "ping"}, [torch.arange(3)])
        header, [array] = connection.receive()
        assert (header, array.tolist()) == ({"what": "ping"}, [0, 1, 2])


@pytest.fixture
def echo():
    with no_threads_left():
        echo = Echo()
        echo.listener.start()
        with echo.listener:
            yield echo


MALFORMED = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(64),
    "an empty header": struct.pack("<I", 0),
    "a huge header": struct.pack("<I", 2**32 - 1) + b"x" * 1000,
    "a header just too large": struct.pack("<I", 2**24 + 1),
    "invalid json": struct.pack("<I", 3) + b"{{{",
    "invalid utf-8": struct.pack("<I", 4) + b'"\xff\xfe"',
    "nested": struct.pack("<I", 200_000) + b"[" * 200_000,
    "a list": encode_message({})[:4].replace(b"\x0e", b"\x02") + b"[]",
    "a truncated header": encode_message({"role": "x", "token": TOKEN})[:-3],
    "no token": encode_message({"role": "x"}),
    "a wrong token": encode_message({"role": "x", "token": TOKEN + "x"}),
    "a token that is not a string": encode_message({"role": "x", "token": {"a": [1]}}),
    "a token that is not unicode": encode_message({"role": "x", "token": "\ud800"}),
    "arrays": encode_message({"role": "x", "token": TOKEN}, torch.ones(1000)),
    "empty arrays": encode_message({"role": "x", "token": TOKEN}, torch.ones(0)),
    "arrays too large": encode_message({"role": "x", "token": "", "arrays": [["float32", [2**60]]]}),
    "arrays of overflowing size": encode_message({"token": TOKEN, "arrays": [["float32", [10**40]]]}),
    "arrays of unknown dtypes": encode_message({"token": TOKEN, "arrays": [["object", [1]], [[], {}], 3]}),
}


@pytest.mark.parametrize("malformed", MALFORMED)
def test_unauthenticated_clients_are_disconnected(echo, malformed):
    with echo.listener.address.connect({"role": "x"}) as before, raw_socket(echo.port) as client:
        echo.check(before)
        client.sendall(MALFORMED[malformed])
        client.shutdown(socket.SHUT_WR)
        try:
            answer = b"".join(iter(lambda: client.recv(2**16), b""))
        except ConnectionResetError:  # its data were not read
            answer = b""
        if "token" in malformed:
            assert b"error" in answer or "unicode" in malformed
        assert TOKEN.encode() not in answer
        echo.check(before)
        with echo.listener.address.connect({"role": "y"}) as after:
            echo.check(after)
    assert [handshake["role"] for handshake in echo.handshakes] == ["x", "y"]


def test_endless_unauthenticated_data_is_cut_off(echo):
    with raw_socket(echo.port) as client:
        client.sendall(encode_message({"token": TOKEN, "arrays": [["uint8", [2**62]]]}))
        with pytest.raises(OSError):
            collections.deque(map(client.sendall, itertools.repeat(bytes(2**20))), 0)


@pytest.mark.parametrize(
    "malformed", ["a huge header", "a header just too large", "arrays", "arrays too large", "zeros"]
)
def test_malformed_handshakes_are_disconnected_at_once(echo, malformed):
    with raw_socket(echo.port) as client, contextlib.suppress(ConnectionResetError):
        client.settimeout(4)
        client.sendall(MALFORMED[malformed][:200])
        assert client.recv(1) == b""


def test_a_wrong_token_is_reported(echo):
    with Address(HERE, echo.port, TOKEN + " ").connect({"role": "x"}) as connection:
        assert "token" in connection.receive()[0]["error"]
        with pytest.raises(ConnectionLostError):
            connection.receive()
    assert echo.handshakes == []


@pytest.mark.parametrize(
    "data", [b"", encode_message({"role": "x", "token": TOKEN})[:-1]], ids=["empty", "truncated"]
)
def test_silent_clients_are_disconnected_after_a_timeout(echo, monkeypatch, data):
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", 0.05)
    with raw_socket(echo.port) as silent, echo.listener.address.connect({"role": "x"}) as other:
        silent.sendall(data)
        echo.check(other)
        assert silent.recv(1) == b""
        with raw_socket(echo.port) as another:
            assert another.recv(1) == b""
        echo.check(other)  # no timeout after the handshake


def test_early_connections_are_served_after_start():
    with no_threads_left():
        echo = Echo()
        with echo.listener, echo.listener.address.connect({"role": "early"}) as early:
            early.send({"n": 1})
            assert not early.has_message()
            echo.listener.start()
            assert early.receive()[0] == {"n": 1}


@pytest.mark.parametrize("started", [True, False])
def test_close_closes_all_connections_and_is_idempotent(started):
    with no_threads_left():
        echo = Echo()
        if started:
            echo.listener.start()
        active, silent = echo.listener.address.connect({"role": "x"}), raw_socket(echo.port)
        if started:
            echo.check(active)
            until(lambda: len(echo.listener._open) == 2)
        receiving = Thread(active.receive)
        echo.listener.close()
        echo.listener.close()
        with pytest.raises(ConnectionLostError):
            receiving.result()
        with pytest.raises(OSError):
            echo.listener.address.connect({"role": "x"}).receive()
        active.close()
        silent.close()


def test_a_connection_accepted_during_close_is_closed(monkeypatch):
    with no_threads_left():
        hold = Hold(connections, "Connection")
        echo = Echo()
        echo.listener.start()
        with raw_socket(echo.port) as client:
            hold.entered()
            echo.listener.close()
            hold.release()
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_an_address_in_use_raises_an_error_that_names_it():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at {HERE}:{port}"):
            Listener(HERE, port, token=TOKEN, handler=lambda *_: None)
