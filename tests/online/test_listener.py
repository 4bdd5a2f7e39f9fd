"""Listeners: who has the token is served, and strangers are let go, whatever they say."""

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
from tests.online.parts import HERE, TOKEN, bare, frame, nothing_left


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
