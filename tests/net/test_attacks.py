"""Who may use what listens: strangers get nowhere, and cost nothing."""

import contextlib
import itertools
import json
import socket
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net import connection, sockets
from compss_train.net.connection import Address, ConnectionLostError
from compss_train.net.server import MessageServer
from compss_train.net.sockets import LOOPBACK
from compss_train.parameter_server import connect, serve
from tests.buffers.kinds import Thread, make
from tests.helpers.proxy import Proxy
from tests.helpers.waiting import LIMIT, awaited, wait_until
from tests.net.plain_clients import HERE, KEYS, TOKEN, PlainClient, no_threads_left, raw_socket
from tests.online.sample_streams import connect_sender, send_stream
from tests.online.stub_fits import StubWorker, stub_fit

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
"""The first 64 bytes of a ZeroMQ client without authentication."""
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


@contextlib.contextmanager
def a_parameter_server():
    with serve(LOOPBACK) as serving:
        keys = itertools.count()

        def check():
            with connect(serving.address, serving.token) as client:
                client.init(key := f"w{next(keys)}", [np.ones(2)])
                assert client.pull(key)[0].tolist() == [1.0, 1.0]

        yield SimpleNamespace(url=serving.address, token=serving.token, check=check)


@contextlib.contextmanager
def an_address_for_senders():
    with stub_fit(senders=1000) as running:

        def check():
            with connect_sender(running) as sender:
                sender.send(1.0)

        yield SimpleNamespace(url=running.coordinator.url, token=TOKEN, check=check)


@contextlib.contextmanager
def a_worker_that_receives():
    with no_threads_left():
        stub = StubWorker(make("FIFO", 1000), address=LOOPBACK)
        streams = itertools.count()
        try:
            yield SimpleNamespace(
                url=stub.url, token=KEYS.token, check=lambda: send_stream(stub, next(streams), 3)
            )
        finally:
            stub.close()


@pytest.fixture(
    params=[a_parameter_server, an_address_for_senders, a_worker_that_receives],
    ids=lambda f: f.__name__,
)
def listening(request):
    """What listens over TCP: its address, its token, and a check that it still serves clients."""
    with request.param() as listening:
        listening.check()
        yield listening
        listening.check()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", bytes(64), b"\xff" * 2**16, GREETING[:63]],
    ids=["nothing", "another protocol", "zeros", "ones", "truncated"],
)
def test_garbage_is_cut_off(listening, garbage):
    with raw_socket(listening.url) as stranger, contextlib.suppress(OSError):
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: stranger.recv(2**16), b""))
        assert len(answer) <= 64  # the greeting of ZeroMQ, which is always the same


@pytest.mark.parametrize(
    "frame", [b"\x03" + (2**20).to_bytes(8, "big"), b"\x02" + (36 * 2**20).to_bytes(8, "big")]
)
def test_what_a_stranger_sends_is_neither_kept_nor_parsed(listening, frame):
    sent = 0
    with raw_socket(listening.url) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(GREETING + READY)
        while sent < 64 * 2**20:
            if not sent or (sent % 2**20 == 0 and frame[0] == 3):
                stranger.sendall(frame)
            stranger.sendall(bytes(2**16))
            sent += 2**16
    assert sent < 16 * 2**20


@pytest.mark.parametrize("token", [None, "another"])
def test_a_stranger_with_another_token_or_none_is_not_heard(listening, token):
    with PlainClient(listening.url, token) as stranger:
        monitor = stranger.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        stranger.socket.setsockopt(zmq.SNDTIMEO, 0)
        with contextlib.suppress(zmq.Again):  # refused by then, it has no connection to send over
            for header in ({"role": "sender"}, {"stream": 0}, {"call": "goodbye", "client": "x"}):
                stranger.send(header)
        assert not monitor.poll(300)
        stranger.socket.setsockopt(zmq.RCVTIMEO, 0)
        with pytest.raises(zmq.Again):
            stranger.read()
        stranger.socket.disable_monitor()


@pytest.mark.parametrize(
    "greeting",
    [b"\x01\x00", b"\xff" + bytes(8) + b"\x7f\x01\x05", b"\xff" + bytes(7) + b"\x01\x7f\x00\x00"],
)
def test_old_protocols_without_authentication_are_refused(listening, greeting):
    with raw_socket(listening.url) as stranger:
        stranger.sendall(greeting + bytes([0, 1]) * 40)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):  # the server's greeting, then the end
                pass


def test_silent_strangers_are_cut_off_and_clients_are_served(listening):
    strangers = [raw_socket(listening.url) for _ in range(300)]
    for stranger in strangers:
        stranger.sendall(b"\xff")
        stranger.setblocking(False)
    wait_until(lambda: sum(map(is_closed, strangers)) >= 300 - 150)
    listening.check()
    for stranger in strangers:
        stranger.close()


def is_closed(sock):
    try:
        while data := sock.recv(100):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return data == b""


@pytest.mark.parametrize("data", [b"", GREETING[:60]], ids=["silent", "slow"])
def test_a_slow_stranger_is_cut_off_and_a_silent_client_is_not(monkeypatch, data):
    monkeypatch.setattr(sockets, "HANDSHAKE_MILLISECONDS", 300)
    monkeypatch.setattr(connection, "_MAX_REFUSALS", 1000)  # of a client that is too slow as well
    with (
        serve(LOOPBACK) as serving,
        raw_socket(serving.address) as stranger,
        connect(serving.address, serving.token) as client,
    ):
        stranger.settimeout(0.1)
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                stranger.sendall(data[number : number + 1])
                try:
                    while stranger.recv(100):
                        pass
                    break  # closed
                except TimeoutError:
                    pass
            else:
                pytest.fail("100 seconds")
        client.init("w", [np.zeros(1)])


class Recorder(Proxy):
    """A proxy that keeps what passes, and changes a byte of what clients send if it is asked to."""

    def __init__(self, address, change=None):
        self.change = change
        self.kept = bytearray()
        self.sent = 0
        super().__init__(address)

    def passed(self, data, to_server):
        data = bytearray(data)
        self.kept += data
        if to_server:
            if self.change is not None and self.sent <= self.change < self.sent + len(data):
                data[self.change - self.sent] ^= 1
            self.sent += len(data)
        return data


def test_messages_over_tcp_are_encrypted():
    secret = np.arange(1000.0)
    with MessageServer(LOOPBACK, TOKEN) as server:
        recorder = Recorder(server.address.url)
        with Address(recorder.address, TOKEN).connect({"role": "the role"}) as client:
            client.send({"key": "the key"}, [secret])
            client.send({"last": 1})
            received = [received_from(server) for _ in range(3)]
    assert [header for _, header, _ in received] == [
        {"role": "the role"},
        {"key": "the key"},
        {"last": 1},
    ]
    assert received[1][2][0].tensor().tolist() == secret.tolist()
    assert len(recorder.kept) > 8000
    for text in (TOKEN.encode(), b"the role", b"the key", secret.tobytes()[800:864]):
        assert text not in recorder.kept


def received_from(server):
    """Return the next message of a server."""
    return awaited(lambda: server.receive(0.05))


@given(st.floats(0, 0.999))
def test_a_message_that_was_changed_on_its_way_is_not_received(share):
    with MessageServer(LOOPBACK, TOKEN) as server:
        recorder = Recorder(server.address.url, 10**9)
        with Address(recorder.address, TOKEN).connect({"n": 0}) as client:
            assert received_from(server)[1] == {"n": 0}
            recorder.change = recorder.sent + 9 + int(share * 3900)
            client.send({"n": 1}, [np.zeros(1000, np.float32)])
            assert received_from(server)[1] is None  # disconnected
            with pytest.raises(ConnectionLostError):
                client.receive(LIMIT)


def test_a_false_server_learns_nothing_from_clients(monkeypatch):
    monkeypatch.setattr(connection, "_MAX_REFUSALS", 1)
    monkeypatch.setattr(sockets, "HANDSHAKE_MILLISECONDS", 500)
    with MessageServer(LOOPBACK, "another") as server, socket.create_server((HERE, 0)) as bare:
        recorder = Recorder(server.address.url)
        with pytest.raises(
            PermissionError, match=("the token is not the server's, or another program listens")
        ):
            Address(recorder.address, TOKEN).connect({"role": "the role"})
        assert server.receive(0.1) is None
        joining = Thread(
            Address(f"tcp://{HERE}:{bare.getsockname()[1]}", TOKEN).connect, {"role": ("the role")}
        )
        sock, _ = bare.accept()
        with sock:
            received = sock.recv(2**10)
            sock.sendall(received)  # its own greeting, sent back
            with contextlib.suppress(ConnectionError):
                while data := sock.recv(2**10):
                    received += data
        with pytest.raises((PermissionError, ConnectionLostError)):
            joining.result()
    for text in (b"the role", TOKEN.encode()):
        assert text not in recorder.kept + received


@pytest.mark.parametrize("address", [None, LOOPBACK])
def test_a_wrong_token_is_an_error(address):
    with serve(address, token="right") as serving:
        with pytest.raises(PermissionError, match="the token is not the server's"):
            connect(serving.address, "wrong")
        with connect(serving.address, "right") as client:
            client.init("w", [np.zeros(1)])


def test_by_default_only_this_user_can_connect():
    with serve() as serving:
        path = Path(serving.address.removeprefix("ipc://"))
        assert path.exists()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "x" * 100, "\udce9"], ids=ascii)
def test_without_a_folder_for_a_socket_file_it_listens_on_loopback(monkeypatch, tmp_path, folder):
    if not folder.startswith("/"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    with serve() as serving, connect(serving.address, serving.token) as client:
        assert serving.address.startswith("tcp://127.0.0.1:")
        client.init("w", [np.zeros(1)])


def test_a_stranger_cannot_take_the_place_of_a_client():
    name = "round 1 on worker 0"
    with serve(LOOPBACK) as serving, connect(serving.address, serving.token, name=name) as client:
        client.init("w", [np.zeros(2)])
        with PlainClient(serving.address, None) as stranger:
            stranger.send({"client": f"named {name}", "generation": 1})
            for _ in range(5):
                client.push("w", [np.ones(2)])
            assert client.pull("w")[0].tolist() == [5.0, 5.0]


MALFORMED = [
    b"\xff" * 9,
    b"",
    b"3",
    b"[" * 100_000,
    json.dumps({"n": 1}).encode(),
    *(
        json.dumps({"arrays": arrays}).encode()
        for arrays in (
            3,
            [["uint8", [2**60]]],
            [["half", [-1]]],
            [["half", [10**40]]],
            [["object", [1]]],
            [[], {}],
        )
    ),
]


@pytest.mark.parametrize(
    "malformed", MALFORMED, ids=lambda data: data[:40].decode(errors="replace")
)
@pytest.mark.parametrize("greeted", [False, True])
def test_malformed_messages_are_answered_and_others_continue(malformed, greeted):
    with MessageServer(LOOPBACK, TOKEN) as server, PlainClient(server.address.url, TOKEN) as client:
        if greeted:
            client.send({"role": "x"})
            assert received_from(server)[1] == {"role": "x"}
        client.socket.send_multipart([malformed, b"12"])
        if greeted:
            assert received_from(server)[1] is None  # it counts as disconnected
        wait_until(lambda: server.receive(0.05) is not None or client.socket.poll(0))
        assert "error" in client.read()
        with server.address.connect({"role": "y"}):
            assert received_from(server)[1] == {"role": "y"}


def test_a_frame_that_is_too_large_ends_the_connection():
    with MessageServer(LOOPBACK, TOKEN) as server, PlainClient(server.address.url, TOKEN) as client:
        client.send({"role": "x"})
        assert received_from(server)[1] == {"role": "x"}
        client.socket.send_multipart([b"{}", bytes(2**20 + 2**14)])
        assert received_from(server)[1] is None
