"""Online fits in this process: a coordinator without tasks, and workers that only receive."""

import queue
import threading
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest

from compss_train.exceptions import SimulationError
from compss_train.net import MessageError
from compss_train.online.events import EventServer
from compss_train.online.external_senders import ExternalSenders
from compss_train.online.receiver import Receiver
from compss_train.online.routing import Routing
from compss_train.online.stream_router import StreamRouter
from tests.buffers.kinds import Thread, make, numbers
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.plain_clients import HERE, KEYS, TOKEN, no_threads_left
from tests.online.sample_streams import SampleConnection


class StubCoordinator:
    """Serves simulations and senders as an online fit does; its workers are only addresses."""

    def __init__(self, workers=1, *, senders=1, paired=False):
        self.server = EventServer(HERE)
        self.address = self.server.address
        self.url = self.server.listen_for_senders(f"tcp://{HERE}:*", TOKEN).url
        self.workers = [
            SimpleNamespace(number=number, url=None, deaths=0) for number in range(workers)
        ]
        self.router = StreamRouter(self.workers, KEYS, paired=paired)
        self.senders = ExternalSenders(senders, self.router)
        self.events = []
        self.warnings = []
        self.clients = []
        self._calls = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = Thread(self._run)

    def _run(self):
        with self.server:
            while not self._closed.is_set():
                while not self._calls.empty():
                    self._calls.get()()
                received = self.server.next(0.02)
                if received is not None:
                    client, header, _ = received
                    self._handle(client, header)

    def _handle(self, client, header):
        if client not in self.clients:
            self.clients.append(client)
        try:
            if client.greeting["role"] == "sender":
                self.senders.handle(client, header)
            elif header is not None and "role" in header:
                self.router.register(client, client.greeting["number"])
            elif header is None or header.keys() & {"finished", "failed", "interrupted"}:
                with suppress(KeyError):  # it has disconnected after it ended
                    self.router.unregister(client)
        except (UserWarning, SimulationError) as notice:  # an error ends a fit, but no stub
            self.warnings.append(str(notice))
        except MessageError as error:
            client.refuse(error)
        self.events.append((client, header))

    def call(self, action):
        """Call a function in the coordinator's thread; return its result."""
        returned = []
        done = threading.Event()

        def run():
            returned.append(action())
            done.set()

        self._calls.put(run)
        assert done.wait(LIMIT)
        return returned[0]

    def set_url(self, worker, url):
        """Set the address of a worker; ``None`` if it has died."""

        def update():
            stub = self.workers[worker]
            stub.url = url
            stub.deaths += url is None
            self.router.update()

        self.call(update)

    def received(self, key):
        """Return the values received under a key."""
        return [
            header[key] for _, header in list(self.events) if header is not None and key in header
        ]

    def wait_for(self, key, times=1):
        wait_until(lambda: len(self.received(key)) >= times)
        return self.received(key)

    def wait_for_disconnects(self, times=1):
        wait_until(lambda: sum(header is None for _, header in list(self.events)) >= times)

    def broadcast(self, header):
        self.call(lambda: [client.send(header) for client in self.clients])

    def close(self):
        self._closed.set()
        self._thread.join(LIMIT)


class StubWorker:
    """A worker that only receives."""

    def __init__(self, buffer, *, number=0, workers=1, paired=False, offsets=None, address=None):
        self.buffer = buffer
        self.receiver = Receiver(
            buffer,
            address,
            keys=KEYS,
            worker=number,
            routing=Routing(workers, whole=paired),
            offsets=offsets,
        )
        self.url = self.receiver.url

    def connect(self, stream):
        """Connect to it as a stream."""
        return SampleConnection(self.url, stream)

    def close(self):
        self.receiver.close()

    def drain(self):
        """Return the numbers of the samples that are left."""
        self.buffer.signal_reception_over()
        return numbers(self.buffer.get_batch(self.buffer.capacity)) if len(self.buffer) else []


class StubFit:
    """A coordinator and its workers."""

    def __init__(self, coordinator, workers, paired):
        self.coordinator = coordinator
        self.workers = workers
        self._paired = paired

    def kill(self, worker):
        """Close a worker after the coordinator has noticed its death."""
        self.coordinator.set_url(worker, None)
        self.workers[worker].close()

    def replace(self, worker, offsets=None, capacity=200):
        """Start a replacement of a worker, which has some samples of some streams."""
        kind = "SimPairedReservoir" if self._paired else "FIFO"
        self.workers[worker] = StubWorker(
            make(kind, capacity),
            number=worker,
            workers=len(self.workers),
            paired=self._paired,
            offsets=offsets,
        )
        self.coordinator.set_url(worker, self.workers[worker].url)


@contextmanager
def stub_fit(workers=1, *, senders=1, paired=False, capacity=200):
    """Give a fit whose workers are all connected."""
    kind = "SimPairedReservoir" if paired else "FIFO"
    with no_threads_left(), ExitStack() as stack:
        coordinator = StubCoordinator(workers, senders=senders, paired=paired)
        stack.callback(coordinator.close)
        stubs = [
            StubWorker(make(kind, capacity), number=number, workers=workers, paired=paired)
            for number in range(workers)
        ]
        stack.callback(lambda: [stub.close() for stub in stubs])
        for worker, stub in enumerate(stubs):
            coordinator.set_url(worker, stub.url)
        yield StubFit(coordinator, stubs, paired)


END_TRAINING = {
    "stop": lambda running: running.coordinator.broadcast({"stop": True}),
    "senders' stop": lambda running: running.coordinator.call(running.coordinator.senders.stop),
    "close": lambda running: running.coordinator.close(),
    "all": lambda running: [
        running.coordinator.close(),
        *(stub.close() for stub in running.workers),
    ],
}
"""Ways in which training ends, by name."""


@pytest.fixture
def make_stub():
    """Make workers that only receive; they are closed after the test."""
    made = []

    def make(*args, **options):
        made.append(StubWorker(*args, **options))
        return made[-1]

    with no_threads_left():
        yield make
        for stub in made:
            stub.close()
