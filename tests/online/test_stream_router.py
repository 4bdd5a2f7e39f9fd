"""When streams are accepted, and which endpoints they get."""

from types import SimpleNamespace

import pytest

from compss_train.online.stream_router import StreamRouter
from tests.online.bare_connections import HERE, KEY


class RecordingClient:
    """A client that records the messages sent to it."""

    def __init__(self):
        self.sent = []

    def send(self, header):
        self.sent.append(header)

    def hide(self, secret):
        return f"hidden {secret}"

    def pop(self):
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def workers():
    return [SimpleNamespace(number=number, endpoint=[HERE, number], attempts=1) for number in range(3)]


@pytest.mark.parametrize("paired", [False, True])
def test_streams_are_accepted_when_all_workers_have_endpoints(workers, paired):
    router, clients = StreamRouter(workers, KEY, paired=paired), [RecordingClient() for _ in range(3)]
    for worker in workers:
        worker.endpoint = None
    for number, worker in enumerate(workers):
        router.register(clients[number], 7 + number)
        assert [client.sent for client in clients] == [[], [], []]
        if number == 1:
            router.unregister(clients[0])  # it disconnects while it waits
        worker.endpoint = [HERE, number]
        router.update()
    endpoints = [[HERE, 0], [HERE, 1], [HERE, 2]]
    answers = [
        {"accepted": True, "stream": 7 + n, "workers": endpoints, "key": f"hidden {KEY}", "paired": paired}
        for n in range(3)
    ]
    assert [client.sent for client in clients] == [[], answers[1:2], answers[2:]]
    router.update()
    assert [len(client.pop()) for client in clients] == [0, 1, 1]  # each once
    router.register(clients[0], 7)
    assert clients[0].sent == answers[:1]


def test_replacements_are_sent_when_the_endpoint_has_changed(workers):
    router, client, other = StreamRouter(workers, KEY, paired=False), RecordingClient(), RecordingClient()
    lost = {"lost": 1, "endpoint": list(workers[1].endpoint)}
    router.request_replacement(client, lost)
    router.request_replacement(other, lost)
    for endpoint in (workers[1].endpoint, None):
        workers[1].endpoint = endpoint
        workers[0].endpoint = [HERE, 99]  # another worker
        router.update()
        assert client.sent == []
    router.unregister(other)
    workers[1].endpoint, workers[2].endpoint = [HERE, 5], None  # other workers may be disconnected
    for _ in range(2):
        router.update()
    assert (client.pop(), other.sent) == ([{"endpoint": [HERE, 5]}], [])
    router.request_replacement(client, lost)  # already replaced
    assert client.pop() == [{"endpoint": [HERE, 5]}]
    router.request_replacement(client, {"lost": 1})  # without an endpoint
    assert client.pop() == [{"endpoint": [HERE, 5]}]


@pytest.mark.parametrize("lost", [-1, 3, "x", None])
def test_unknown_workers_raise(workers, lost):
    router, client = StreamRouter(workers, KEY, paired=False), RecordingClient()
    with pytest.raises((ValueError, TypeError)):
        router.request_replacement(client, {"lost": lost})
    router.update()
    assert client.sent == []


def test_unregister_returns_the_workers_that_died_since_acceptance(workers):
    router, clients = StreamRouter(workers, KEY, paired=False), [RecordingClient() for _ in range(3)]
    router.register(clients[0], 0)
    workers[1].endpoint = None
    router.register(clients[1], 1)  # accepted later
    workers[1].attempts, workers[1].endpoint = 2, [HERE, 9]
    router.update()
    workers[2].attempts += 1
    assert router.unregister(clients[0]) == workers[1:]
    assert router.unregister(clients[1]) == workers[2:]
    assert [router.unregister(client) for client in clients] == [[], [], []]


def test_only_active_streams_are_notified_of_a_lost_worker(workers):
    router, clients = StreamRouter(workers, KEY, paired=False), [RecordingClient() for _ in range(3)]
    router.register(clients[0], 0)
    router.register(clients[1], 1)
    router.unregister(clients[1])
    workers[2].endpoint = None
    router.register(clients[2], 2)
    for client in clients:
        client.pop()
    router.announce_lost(workers[2])
    assert [client.sent for client in clients] == [[{"worker_lost": 2}], [], []]
