"""Who may use the sockets of parameter servers: strangers get nowhere, and cost nothing."""

import contextlib
import hashlib
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from compss_train.net import sockets
from compss_train.net.sockets import LOOPBACK
from compss_train.parameter_server import connect, serve

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
"""The first 64 bytes of a ZeroMQ client without authentication."""
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


def bare(serving):
    """Return a socket that is connected to the server."""
    host, port = serving.address.removeprefix("tcp://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    return sock


def test_a_stranger_cannot_take_the_place_of_a_client(serving):
    name = "round 1 on worker 0"
    with connect(serving.address, serving.token, name=name, timeout=5) as client:
        client.init("w", [np.zeros(2)])
        with stranger_named(name, serving.address):
            for _ in range(5):
                client.push("w", [np.ones(2)])
            assert client.pull("w")[0].tolist() == [5.0, 5.0]


@contextlib.contextmanager
def stranger_named(name, address):
    """Connect without the token under the identity of a client of this name, and wait for what comes of it."""
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt_string(zmq.IDENTITY, f"named {hashlib.sha256(name.encode()).hexdigest()}")
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    stranger.connect(address)
    assert monitor.poll(10_000)
    try:
        yield
    finally:
        stranger.disable_monitor()
        context.destroy(0)


@pytest.mark.parametrize("frame", [b"\x03" + (2**20).to_bytes(8, "big"), b"\x02" + (36 * 2**20).to_bytes(8, "big")])
def test_what_a_stranger_sends_is_not_kept(serving, client, frame):
    sent = 0
    with bare(serving) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(GREETING + READY)
        while sent < 64 * 2**20:
            if not sent or (sent % 2**20 == 0 and frame[0] == 3):
                stranger.sendall(frame)
            stranger.sendall(bytes(2**16))
            sent += 2**16
    assert sent < 16 * 2**20
    client.init("w", [np.zeros(1)])


@pytest.mark.parametrize(
    "greeting", [b"\x01\x00", b"\xff" + bytes(8) + b"\x7f\x01\x05", b"\xff" + bytes(7) + b"\x01\x7f\x00\x00"]
)
def test_old_protocols_without_authentication_are_refused(serving, greeting):
    with bare(serving) as stranger:
        stranger.sendall(greeting + bytes([0, 1]) * 40)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):  # the server's greeting, then the end
                pass


def test_silent_strangers_are_cut_off_and_clients_are_served(serving):
    strangers = [bare(serving) for _ in range(300)]
    for stranger in strangers:
        stranger.sendall(b"\xff")
        stranger.setblocking(False)
    deadline = time.monotonic() + 30
    while sum(map(is_closed, strangers)) < 300 - 150:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with connect(serving.address, serving.token) as client:
        client.init("w", [np.ones(2)])
        assert client.pull("w")[0].tolist() == [1.0, 1.0]
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


def test_a_slow_stranger_is_cut_off(monkeypatch):
    monkeypatch.setattr(sockets, "_HANDSHAKE_MILLISECONDS", 300)
    with serve(LOOPBACK) as serving, bare(serving) as stranger:
        stranger.settimeout(0.1)
        deadline = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            for byte in GREETING[:60]:
                stranger.sendall(bytes([byte]))
                try:
                    while stranger.recv(100):
                        pass
                    break  # closed
                except TimeoutError:
                    assert time.monotonic() < deadline
            else:
                pytest.fail("60 bytes in 6 seconds")


class Recorder:
    """A proxy that keeps what passes."""

    def __init__(self, address):
        host, port = address.removeprefix("tcp://").split(":")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.far = socket.create_connection((host, int(port)))
        self.passed = bytearray()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        near, _ = self.listener.accept()
        self.listener.close()
        for source, sink in ((near, self.far), (self.far, near)):
            threading.Thread(target=self.forward, args=[source, sink], daemon=True).start()

    def forward(self, source, sink):
        with source, contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.passed += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_messages_over_tcp_are_encrypted(serving):
    recorder = Recorder(serving.address)
    with connect(recorder.address, serving.token) as client:
        client.init("the key", [np.arange(1000.0)])
        assert client.pull("the key")[0].tolist() == list(range(1000))
    assert len(recorder.passed) > 16_000
    for secret in (serving.token.encode(), b"the key", np.arange(1000.0).tobytes()[800:864]):
        assert secret not in recorder.passed


@pytest.mark.parametrize("address", [None, LOOPBACK])
def test_a_wrong_token_is_an_error(address):
    with serve(address, token="right") as serving:
        with pytest.raises(PermissionError, match="the token is not the server's"):
            connect(serving.address, "wrong")
        with connect(serving.address, "right") as client:
            client.init("w", [np.zeros(1)])


@pytest.mark.parametrize("token", ["", 5, b"x"])
def test_a_token_is_a_string_that_is_not_empty(token):
    with pytest.raises(ValueError, match="give a secret string that is not empty"):
        serve(token=token)
    with serve() as serving, pytest.raises(ValueError, match="give a secret string that is not empty"):
        connect(serving.address, token)


def test_by_default_only_this_user_can_connect():
    with serve() as serving:
        path = Path(serving.address.removeprefix("ipc://"))
        assert path.exists()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "long"])
def test_without_a_folder_for_a_socket_file_it_listens_on_loopback(monkeypatch, tmp_path, folder):
    if folder == "long":
        folder = tmp_path / ("x" * 100)
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with serve() as serving, connect(serving.address, serving.token) as client:
        assert serving.address.startswith("tcp://127.0.0.1:")
        client.init("w", [np.zeros(1)])
