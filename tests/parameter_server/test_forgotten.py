"""Clients without a name that die without a goodbye are forgotten; no call of one that returns
counts twice.
"""

import time

import numpy as np
import pytest

from compss_train.net import Address, MessageServer
from compss_train.net.sockets import LOOPBACK
from compss_train.parameter_server import LocalParameterServer, connect, server_loop
from tests.helpers.proxy import Proxy
from tests.helpers.waiting import LIMIT, wait_until

TOKEN = "token"
LATER = 1000.0
"""More seconds than a client that is away is remembered."""


class Connected(Proxy):
    """A proxy to a server; time passes at the server, and answers get lost, when a test says so."""

    def __init__(self):
        self.seconds = 0.0
        self.loses_answers = False
        self.store = LocalParameterServer()
        self.server = self.serve(self.store)
        super().__init__(self.server.address)

    def serve(self, store, address=LOOPBACK):
        return server_loop.ServerLoop(
            MessageServer(address, TOKEN), store, clock=lambda: time.monotonic() + self.seconds
        )

    def passed(self, data, to_server):
        return data if to_server or not self.loses_answers else b""

    def connect(self, **options):
        return connect(self.address, TOKEN, **options)

    def cut(self):
        super().cut()
        wait_until(lambda: not any(self.server.clients.values()))

    def wait(self):
        """Let the time pass after which clients that are away are forgotten."""
        self.seconds += LATER


@pytest.fixture
def proxy():
    proxy = Connected()
    yield proxy
    proxy.close()
    proxy.server.close()


@pytest.fixture(params=[True, False], ids=["soon", "late"])
def forgets(request, proxy):
    """Whether the server forgets a client that is away; a function that cuts its connection."""

    def cut():
        proxy.cut()
        if request.param:
            proxy.wait()
            wait_until(lambda: not proxy.server.clients)

    cut.does_it = request.param
    return cut


def test_many_dead_clients_leave_nothing(proxy):
    address = Address(proxy.server.address, TOKEN)
    with proxy.connect() as client:
        client.init("w", [np.zeros(1)])
        for number in range(60):
            own = (
                {"client": f"unnamed {number}", "timeout": 0.0}
                if number % 20
                else {"client": ("named task")}
            )
            with address.connect({"generation": 0, **own}) as dying:
                dying.send(
                    {"call": "pull", "key": "w", "priority": 0, "number": number, "count": 0}
                )
                assert dying.receive(LIMIT)[0] == {"numbers": [number]}
        wait_until(lambda: sum(proxy.server.clients.values()) == 1)
        assert len(proxy.server.clients) == 59
        proxy.wait()
        wait_until(lambda: len(proxy.server.clients) == 2)
        assert {name.split()[0]: connected for name, connected in proxy.server.clients.items()} == {
            "named": False,
            "unnamed": True,
        }
        with proxy.connect(name="task") as task:  # it is remembered
            task.push("w", [np.ones(1)])
        client.push("w", [np.ones(1)])
        assert client.pull("w")[0].item() == 2.0


def test_an_idle_client_goes_on_however_long_it_was_away(proxy, forgets):
    with proxy.connect() as client:
        client.init("w", [np.zeros(1)])
        client.init("v", [np.zeros(1)])
        for total in range(1, 4):
            client.push("w", [np.ones(1)])
            # With the last answer it has that of the push.
            for _ in range(server_loop.MAX_BATCH + 1):
                assert client.pull("w")[0].item() == total
            forgets()
        client.push("v", [np.ones(1)])
        assert client.pull("v")[0].item() == 1.0


def test_a_call_whose_answer_was_lost_is_not_executed_twice(proxy, forgets):
    with proxy.connect() as client:
        client.init("w", [np.zeros(1)])
        proxy.loses_answers = True
        client.push("w", [np.ones(1)])
        wait_until(lambda: proxy.store.entry("w").values[0].item() == 1.0)
        forgets()
        proxy.loses_answers = False
        if forgets.does_it:
            with pytest.raises(ValueError, match="if the server was restarted, use a new client"):
                client.pull("w")
        else:
            assert client.pull("w")[0].item() == 1.0
        assert proxy.store.entry("w").values[0].item() == 1.0


def test_another_server_at_the_address_is_noticed_by_an_idle_client(proxy):
    with proxy.connect() as client:
        client.init("w", [np.zeros(1)])
        proxy.cut()
        proxy.server.close()
        proxy.server = proxy.serve(LocalParameterServer(), proxy.server.address)
        with pytest.raises(ValueError, match="if the server was restarted, use a new client"):
            client.init("w", [np.zeros(1)])


def test_a_client_that_waits_for_longer_is_remembered_for_as_long(proxy):
    with proxy.connect(timeout=10**6) as client, proxy.connect() as other:
        client.init("w", [np.zeros(1)])
        other.pull("w")
        proxy.cut()
        proxy.wait()
        wait_until(lambda: len(proxy.server.clients) == 1)
        client.push("w", [np.ones(1)])
        assert client.pull("w")[0].item() == 1.0
