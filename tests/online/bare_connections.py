"""Sockets and messages made without the package, and checks that no thread and no connection is left open."""

import json
import socket
import struct
import threading
from contextlib import contextmanager

import pytest

from compss_train.online.connection import Connection
from tests.buffers.kinds import DEADLINE, until

HERE, TOKEN = "127.0.0.1", "töken"
KEY = "kéy"
"""The token of receivers; ``TOKEN`` is that of the coordinator's address for senders."""
THREADS = {"connection", "listener", "stream-control", "watchdog"}
"""Names of the package's threads."""


@contextmanager
def no_threads_left():
    """Check that no thread of the package outlives the block."""
    before = set(threading.enumerate())
    yield
    until(lambda: not [each for each in threading.enumerate() if each.name in THREADS and each not in before])


@contextmanager
def no_open_connections():
    """Check that every connection that is made in the block is closed."""
    made, init = [], Connection.__init__

    def record(connection, sock):
        made.append(sock)
        init(connection, sock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "__init__", record)
        yield
    until(lambda: all(sock.fileno() == -1 for sock in made))


def raw_socket(port):
    """Return a socket that is connected to a local port."""
    sock = socket.create_connection((HERE, port))
    sock.settimeout(DEADLINE)
    return sock


def encode_message(header, *arrays):
    """Return the bytes of a message; ``arrays`` are float32."""
    described = [["float32", list(array.shape)] for array in arrays]
    head = json.dumps({"arrays": described, **header}).encode()
    return struct.pack("<I", len(head)) + head + b"".join(array.numpy().tobytes() for array in arrays)


def read_message(sock):
    """Return the header of the next message from a socket."""
    (length,) = struct.unpack("<I", _read(sock, 4))
    return json.loads(_read(sock, length))


def _read(sock, size):
    data = b""
    while len(data) < size:
        received = sock.recv(size - len(data))
        assert received, "the peer closed the connection"
        data += received
    return data


@contextmanager
def connection_pair(small=False):
    """Give both ends of a connection; a ``small`` one buffers little."""
    with socket.create_server((HERE, 0)) as server:
        near = socket.socket()
        if small:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        near.connect(server.getsockname())
        far, _ = server.accept()
    with Connection(near) as one, Connection(far) as other:
        yield one, other
