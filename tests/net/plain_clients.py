"""Clients that do not use the package, and checks that no thread and no connection is left open."""

import hmac
import json
import socket
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import zmq
from zmq.utils import z85

from compss_train.net import sockets
from compss_train.online.routing import StreamKeys
from tests.helpers.waiting import LIMIT, wait_until

HERE = "127.0.0.1"
TOKEN = "töken"
"""The token of the coordinator's address for senders."""
KEYS = StreamKeys("kéy")
"""The keys of streams."""
THREADS = {"receiver", "connections", "watchdog"}
"""Names of the package's threads."""


@contextmanager
def no_threads_left():
    """Check that no thread of the package outlives the block."""
    before = set(threading.enumerate())
    yield
    wait_until(
        lambda: (
            not [
                each
                for each in threading.enumerate()
                if each.name in THREADS and each not in before
            ]
        )
    )


@contextmanager
def no_open_connections():
    """Check that every connection that is made in the block is closed."""
    made = []
    new_socket = sockets.client_socket

    def record(*args):
        made.append(new_socket(*args))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "client_socket", record)
        yield
    wait_until(lambda: all(each.closed for each in made))


def raw_socket(url):
    """Return a socket that is connected to the port of an address."""
    host, port = url.removeprefix("tcp://").split(":")
    sock = socket.create_connection((host, int(port)), LIMIT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    return sock


class PlainClient:
    """A client of the documented messages; ``token=None`` connects without authentication."""

    def __init__(self, url, token):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVTIMEO, int(1000 * LIMIT))
        if token is not None:
            secret = z85.encode(hmac.digest(token.encode(), b"compss-train server", "sha256"))
            self.socket.curve_serverkey = zmq.curve_public(secret)
            self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.connect(url)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.destroy(1000)

    def send(self, header, *arrays):
        """Send a message with arrays of float32."""
        arrays = [np.asarray(array, np.float32) for array in arrays]
        described = {"arrays": [["float32", list(array.shape)] for array in arrays]}
        self.socket.send_multipart(
            [json.dumps(described | header).encode(), *(array.tobytes() for array in arrays)]
        )

    def read(self):
        """Return the header of the next message that is not empty, without what it says of
        arrays.
        """
        while True:
            header = json.loads(self.socket.recv_multipart()[0])
            assert header.pop("arrays") == []
            if header:
                return header
