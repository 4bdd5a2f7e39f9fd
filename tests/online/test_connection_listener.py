"""Listeners serve clients with the token, and disconnect all others."""

import collections
import contextlib
import itertools
import socket
import struct
import threading

import pytest
import torch

from compss_train.online import connection as connections
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Address, Listener
from tests.buffers.kinds import Hold, Thread, until
from tests.online.bare_connections import HERE, TOKEN, BareClient, no_threads_left, raw_socket


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


GARBAGE = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(64),
    "a long header": struct.pack("<I", 36 * 2**20) + b"[" * 2**20,
    "truncated": bytes(63),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_unauthenticated_clients_are_disconnected(echo, garbage):
    with echo.listener.address.connect({"role": "x"}) as before, raw_socket(echo.port) as client:
        echo.check(before)
        with contextlib.suppress(OSError):
            client.sendall(GARBAGE[garbage])
            client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # its data were not read
            answer = b"".join(iter(lambda: client.recv(2**16), b""))
        assert len(answer) in (0, 32, 64)
        assert not any(answer[32:])
        echo.check(before)
        with echo.listener.address.connect({"role": "y"}) as after:
            echo.check(after)
    assert [handshake["role"] for handshake in echo.handshakes] == ["x", "y"]


def test_what_a_stranger_sends_is_neither_kept_nor_parsed(echo, monkeypatch):
    monkeypatch.setattr(connections, "unpack", None)
    with raw_socket(echo.port) as client:
        client.sendall(struct.pack("<I", 2**24) + bytes(60))
        many = itertools.repeat(bytes(2**16), 32 * 2**20 // 2**16)
        with pytest.raises(OSError):
            collections.deque(map(client.sendall, many), 0)


MALFORMED = [
    {},
    {"role": 3},
    {"role": "x", "arrays": [["float32", [1000]]]},
    {"role": "x", "arrays": [["float32", [2**60]]]},
    {"role": "x", "arrays": [["float32", [10**40]]]},
    {"role": "x", "arrays": [["object", [1]], [[], {}], 3]},
]


@pytest.mark.parametrize("malformed", MALFORMED, ids=str)
def test_malformed_handshakes_are_disconnected_at_once(echo, malformed):
    with BareClient(echo.port, TOKEN) as client:
        client.settimeout(4)
        client.send(malformed)
        assert client.recv(1) == b""
    assert echo.handshakes == []


def test_a_client_of_raw_sockets_is_served(echo):
    with BareClient(echo.port, TOKEN) as client:
        assert client.is_accepted
        client.send({"role": "x"})
        client.send({"what": "ping"})
        assert client.read()["what"] == "ping"


def test_a_wrong_token_is_reported(echo):
    with pytest.raises(PermissionError, match=r"wrong token; use the token= given to fit_online"):
        Address(HERE, echo.port, TOKEN + " ").connect({"role": "x"})
    with BareClient(echo.port, TOKEN + " ") as client:
        assert client.proof == bytes(32)
        assert client.recv(1) == b""
    assert echo.handshakes == []


def test_a_listener_with_another_token_learns_nothing_from_clients():
    with socket.create_server((HERE, 0)) as server:
        joining = Thread(Address(HERE, server.getsockname()[1], TOKEN).connect, {"role": "secret"})
        sock, _ = server.accept()
        with sock:
            sock.sendall(bytes(32))
            received = sock.recv(2**10)
            sock.sendall(received[32:])  # its own proof, sent back
            assert sock.recv(1) == b""
        with pytest.raises(
            ConnectionLostError, match=f"{HERE}:.* has no proof of the token: another program listens"
        ):
            joining.result()
    assert len(received) == 64
    assert TOKEN.encode() not in received


@pytest.mark.parametrize("data", [b"", bytes(63)], ids=["silent", "slow"])
def test_clients_that_take_too_long_are_disconnected(echo, monkeypatch, data):
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", 0.3)
    with raw_socket(echo.port) as stranger, echo.listener.address.connect({"role": "x"}) as other:
        echo.check(other)
        with contextlib.suppress(ConnectionError):
            for number in range(len(data)):  # for 6 seconds, if it may
                stranger.sendall(data[number : number + 1])
                stranger.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    while stranger.recv(100):
                        pass
                    break
            else:
                stranger.settimeout(4)
                assert len(stranger.recv(32)) == 32
                assert (data, stranger.recv(1)) == (b"", b"")
        echo.check(other)  # no timeout after the handshake


def test_silent_strangers_do_not_use_up_connections(echo):
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(raw_socket(echo.port)) for _ in range(200)]
        until(lambda: len(echo.listener._strangers) == 128)
        assert [stranger.recv(64)[32:] for stranger in strangers[:72]] == [b""] * 72
        with echo.listener.address.connect({"role": "x"}) as client:
            echo.check(client)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(24, "Too many open files")])
def test_accepting_goes_on_after_an_error(echo, monkeypatch, error):
    failures = [error] * 3

    def start(thread):
        if thread.name == "connection" and failures:
            raise failures.pop()
        original(thread)

    original = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3):
        with raw_socket(echo.port) as failed, contextlib.suppress(ConnectionResetError):
            assert failed.recv(1) == b""
    with echo.listener.address.connect({"role": "x"}) as client:
        echo.check(client)
    assert failures == []


def test_early_connections_are_served_after_start():
    with no_threads_left():
        echo = Echo()
        with echo.listener:
            connecting = Thread(echo.listener.address.connect, {"role": "early"})
            echo.listener.start()
            with connecting.result() as early:
                early.send({"n": 1})
                assert early.receive()[0] == {"n": 1}


@pytest.mark.parametrize("started", [True, False])
def test_close_closes_all_connections_and_is_idempotent(started):
    with no_threads_left():
        echo = Echo()
        silent = raw_socket(echo.port)
        if started:
            echo.listener.start()
            active = echo.listener.address.connect({"role": "x"})
            echo.check(active)
            until(lambda: (len(echo.listener._trusted), len(echo.listener._strangers)) == (1, 1))
            receiving = Thread(active.receive)
        echo.listener.close()
        echo.listener.close()
        if started:
            with pytest.raises(ConnectionLostError):
                receiving.result()
            active.close()
        with pytest.raises(OSError):
            echo.listener.address.connect({"role": "x"})
        silent.close()


def test_a_connection_authenticated_during_close_is_closed(monkeypatch):
    with no_threads_left():
        hold = Hold(connections, "accept_client")
        echo = Echo()
        echo.listener.start()
        with raw_socket(echo.port) as client:
            hold.entered()
            echo.listener.close()
            hold.release()
            with contextlib.suppress(ConnectionResetError):
                while client.recv(100):
                    pass


def test_an_address_in_use_raises_an_error_that_names_it():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at {HERE}:{port}"):
            Listener(HERE, port, token=TOKEN, handler=lambda *_: None)
