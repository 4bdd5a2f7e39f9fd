"""Sockets and messages made without the package, and checks that no thread and no connection is left open."""

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
from contextlib import contextmanager

import pytest

from compss_train.online.authentication import MessageCodes
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

    def record(connection, sock, codes):
        made.append(sock)
        init(connection, sock, codes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "__init__", record)
        yield
    until(lambda: all(sock.fileno() == -1 for sock in made))


def raw_socket(port):
    """Return a socket that is connected to a local port."""
    sock = socket.create_connection((HERE, port))
    sock.settimeout(DEADLINE)
    return sock


def split_message(header, *arrays):
    """Return the bytes of a message's header and of its arrays, which are float32."""
    described = [["float32", list(array.shape)] for array in arrays]
    head = json.dumps({"arrays": described, **header}).encode()
    return struct.pack("<I", len(head)) + head, b"".join(array.numpy().tobytes() for array in arrays)


def encode_for(connection, header, *arrays):
    """Return the bytes of the next message of a connection of the package."""
    parts = [part for part in split_message(header, *arrays) if part]
    return b"".join(part + connection._codes.sign(part) for part in parts)


class BareClient:
    """A client of the documented protocol that does not use the package; it can do what its socket can."""

    def __init__(self, port, token):
        self.sock = raw_socket(port)
        nonce = os.urandom(32)
        nonces = _read(self.sock, 32) + nonce
        self.sock.sendall(nonce + self.keyed(token.encode(), b"client" + nonces))
        self.proof = _read(self.sock, 32)
        self.is_accepted = self.proof == self.keyed(token.encode(), b"listener" + nonces)
        self.keys = [self.keyed(token.encode(), name + nonces) for name in (b"to listener", b"to client")]
        self.mask = self.keyed(token.encode(), b"key" + nonces)
        self.numbers = [0, 0]

    @staticmethod
    def keyed(key, data):
        return hmac.new(key, data, hashlib.sha256).digest()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.sock.close()

    def __getattr__(self, name):
        return getattr(self.sock, name)

    def reveal(self, hidden):
        return bytes(a ^ b for a, b in zip(bytes.fromhex(hidden), self.mask, strict=False)).decode()

    def _code(self, direction, data):
        number = struct.pack("<Q", self.numbers[direction])
        self.numbers[direction] += 1
        return self.keyed(self.keys[direction], number + data)

    def encode(self, header, *arrays):
        """Return the bytes of its next message."""
        parts = [part for part in split_message(header, *arrays) if part]
        return b"".join(part + self._code(0, part) for part in parts)

    def send(self, header, *arrays):
        self.sock.sendall(self.encode(header, *arrays))

    def read(self):
        """Return the header of the next message, which has no arrays."""
        size = _read(self.sock, 4)
        head = _read(self.sock, *struct.unpack("<I", size))
        assert _read(self.sock, 32) == self._code(1, size + head)
        return json.loads(head)


def _read(sock, size):
    data = b""
    while len(data) < size:
        received = sock.recv(size - len(data))
        assert received, "the peer closed the connection"
        data += received
    return data


def codes_pair():
    """Return the codes of both ends of a connection."""
    return tuple(MessageCodes(one * 32, other * 32, bytes(32)) for one, other in ((b"a", b"b"), (b"b", b"a")))


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
    codes = codes_pair()
    with Connection(near, codes[0]) as one, Connection(far, codes[1]) as other:
        yield one, other
