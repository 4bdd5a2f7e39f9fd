"""Parts of an online fit in this process: a coordinator that has no tasks, receivers, and bare connections."""

import itertools
import json
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import torch

from compss_train.online.connection import Address, Connection
from compss_train.online.event_server import Director
from compss_train.online.receiver import Receiver
from compss_train.online.senders import Senders
from compss_train.online.stream import Stream
from compss_train.online.stream_router import Reception
from tests.buffers.kinds import DEADLINE, Thread, make, numbers, until

HERE, TOKEN = "127.0.0.1", "töken"
KEY = "kéy"
"""What is asked for by receivers, where ``TOKEN`` is asked for by whom senders begin with."""
OURS = {"connection", "listener", "stream-control", "watchdog"}
"""Names of the threads that must end with what started them."""


@contextmanager
def nothing_left():
    """Check that no thread of the package outlives the block."""
    before = set(threading.enumerate())
    yield
    until(lambda: not [each for each in threading.enumerate() if each.name in OURS and each not in before])


def bare(port):
    """Return a socket that is connected to a port here."""
    sock = socket.create_connection((HERE, port))
    sock.settimeout(DEADLINE)
    return sock


def frame(header, *arrays):
    """Return the bytes of a message, made by hand; ``arrays`` are float32."""
    described = [["float32", list(array.shape)] for array in arrays]
    head = json.dumps({"arrays": described, **header}).encode()
    return struct.pack("<I", len(head)) + head + b"".join(array.numpy().tobytes() for array in arrays)


def said(sock):
    """Read a message with nothing of the package."""
    (length,) = struct.unpack("<I", _read(sock, 4))
    return json.loads(_read(sock, length))


def _read(sock, size):
    data = b""
    while len(data) < size:
        came = sock.recv(size - len(data))
        assert came, "the other side has closed the connection"
        data += came
    return data


@contextmanager
def pair(small=False):
    """Give both ends of a connection, which may hold little of what is not read."""
    with socket.create_server((HERE, 0)) as server:
        near = socket.socket()
        if small:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        near.connect(server.getsockname())
        far, _ = server.accept()
    with Connection(near) as one, Connection(far) as other:
        yield one, other


class BaseTrainer:
    """Answers simulations and senders as an online fit does, whose workers are no more than places."""

    def __init__(self, workers=1, *, senders=1, paired=False):
        self.director = Director(HERE, lambda worker, saved: None)
        self.address = self.director.address
        self.director.let_in_senders(HERE, 0, TOKEN)
        self.door = self.director._listeners[-1].address
        self.places = [SimpleNamespace(number=number, place=None, runs=0) for number in range(workers)]
        self.reception = Reception(self.places, KEY, paired=paired)
        self.senders = Senders(senders, self.reception, itertools.count().__next__)
        self.heard, self.warned, self.peers = [], [], []
        self._thread = Thread(self._run)

    @property
    def url(self):
        return f"tcp://{HERE}:{self.door.port}"

    def _run(self):
        while (event := self.director.next(DEADLINE)) is not None:
            if callable(event):
                event()
                continue
            peer, header = event.peer, event.header
            if peer not in self.peers:
                self.peers.append(peer)
            try:
                if peer.role == "sender":
                    self.senders.handle(peer, header)
                elif header is not None and "hello" in header:
                    self.reception.welcome(peer, peer.number)
            except UserWarning as warning:
                self.warned.append(str(warning))
            except (ValueError, TypeError, LookupError) as error:
                peer.tell({"error": f"{type(error).__name__}: {error}"})
            self.heard.append((peer, header))

    def do(self, action):
        """Run something in the coordinator's thread; return what it returns."""
        returned, done = [], threading.Event()

        def run():
            returned.append(action())
            done.set()

        self.director._events.put(run)
        assert done.wait(DEADLINE)
        return returned[0]

    def place(self, worker, port):
        """Say where a worker is, or with ``None`` that it is nowhere."""

        def put():
            each = self.places[worker]
            each.place, each.runs = None if port is None else [HERE, port], each.runs + (port is not None)
            if port is None:
                self.reception.tell_left(each)
            self.reception.look()

        self.do(put)

    def headers(self, key):
        """Return what was said under a key."""
        return [header[key] for _, header in list(self.heard) if header is not None and key in header]

    def until_heard(self, key, times=1):
        until(lambda: len(self.headers(key)) >= times)
        return self.headers(key)

    def until_left(self, times=1):
        until(lambda: sum(header is None for _, header in list(self.heard)) >= times)

    def tell_all(self, header):
        self.do(lambda: [peer.tell(header) for peer in self.peers])

    def close(self):
        if self._thread.is_alive():
            self.director.close()
            self.director._events.put(lambda: (_ for _ in ()).throw(SystemExit))
            self._thread.join(DEADLINE)


class Place:
    """A worker that only receives."""

    def __init__(self, buffer, *, paired=False, received=None, small=False, saving=True):
        self.buffer, self.failures = buffer, []
        self.receiver = Receiver(
            buffer, HERE, KEY, paired=paired, received=received, saving=saving, failed=self.failures.append
        )
        if small:
            self.receiver._listener._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        self.receiver.start()
        self.port = self.receiver.port

    def hello(self, stream):
        """Connect to it as a stream; return the connection and what it has of the stream."""
        connection = Address(HERE, self.port, KEY).connect({"hello": "samples", "stream": stream})
        return connection, connection.receive()[0]["next"]

    def die(self):
        self.receiver.close()

    def drained(self):
        """Return the numbers that can still be got."""
        self.buffer.signal_reception_over()
        return numbers(self.buffer.get_batch(self.buffer.capacity)) if len(self.buffer) else []


class Fit:
    """A coordinator and its workers."""

    def __init__(self, coordinator, places, paired):
        self.coordinator, self.places, self._paired = coordinator, places, paired

    def die(self, worker):
        """Let a worker die, as the coordinator learns it."""
        self.coordinator.place(worker, None)
        self.places[worker].die()

    def replace(self, worker, received=None, capacity=200):
        """Let another one take its place, which has some samples of some streams."""
        kind = "SimPairedReservoir" if self._paired else "FIFO"
        self.places[worker] = Place(make(kind, capacity), paired=self._paired, received=received)
        self.coordinator.place(worker, self.places[worker].port)


@contextmanager
def fit(workers=1, *, senders=1, paired=False, capacity=200, small=False):
    """Give a fit that has all its workers."""
    kind = "SimPairedReservoir" if paired else "FIFO"
    with nothing_left(), ExitStack() as stack:
        coordinator = BaseTrainer(workers, senders=senders, paired=paired)
        stack.callback(coordinator.close)
        places = [Place(make(kind, capacity), paired=paired, small=small) for _ in range(workers)]
        stack.callback(lambda: [place.die() for place in places])
        for worker, place in enumerate(places):
            coordinator.place(worker, place.port)
        yield Fit(coordinator, places, paired)


def stream(coordinator, number):
    """Return the stream of a simulation, connected to the workers."""
    opened = Stream(coordinator.address, {"hello": "simulation", "number": number})
    opened.open()
    return opened


def value(number):
    """Return a sample of one number."""
    return (torch.tensor([float(number)]),)
