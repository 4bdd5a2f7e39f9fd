"""Clients without a name that die without a goodbye are forgotten; no call of one that returns counts twice."""

import numpy as np
import pytest

from compss_train.net import Address
from compss_train.parameter_server import connect, server_loop
from tests.buffers.kinds import DEADLINE
from tests.helpers.waiting import wait_until


@pytest.fixture(params=[0.0, 600.0], ids=["soon", "late"])
def patience(request, monkeypatch):
    """Seconds for which clients that are away are remembered."""
    monkeypatch.setattr(server_loop, "_FORGET_SECONDS", request.param)
    return request.param


def remembered_for_no_time(serving):
    """Return a client that waits for answers, but does not say for how long."""
    client = connect(serving.address, serving.token)
    client._caller._greeting["timeout"] = 0.0
    for records in serving._clients.values():
        records.timeout = 0.0
    return client


def test_many_dead_clients_leave_nothing(serving, client, monkeypatch):
    monkeypatch.setattr(server_loop, "_FORGET_SECONDS", 0.0)
    client.init("w", [np.zeros(1)])
    address = Address(serving.address, serving.token)
    for number in range(60):
        named = {"client": "named task"} if number % 20 == 0 else {"client": f"unnamed {number}", "timeout": 0.0}
        with address.connect({"generation": 0, **named}) as dying:
            dying.send({"call": "pull", "key": "w", "priority": 0, "number": number, "count": 0})
            assert dying.receive(DEADLINE)[0] == {"numbers": [number]}
    wait_until(lambda: len(serving._clients) == 2)
    assert sorted(name.split()[0] for name in serving._clients) == ["named", "unnamed"]
    wait_until(lambda: not serving._absent and len(serving._connected) == 1)
    with connect(serving.address, serving.token, name="task") as task:  # it is remembered
        task.push("w", [np.ones(1)])
    client.push("w", [np.ones(1)])
    assert client.pull("w")[0].item() == 2.0


def test_an_idle_client_goes_on_however_long_it_was_away(serving, patience):
    with remembered_for_no_time(serving) as client:
        client.init("w", [np.zeros(1)])
        client.init("v", [np.zeros(1)])
        for total in range(1, 4):
            client.push("w", [np.ones(1)])
            assert client.pull("w")[0].item() == total
            # Of the push.
            wait_until(lambda: not client._caller._sent or client._caller._connection._socket.poll(0))
            (connected,) = serving._connected
            serving._server._connections._shut_down(connected.descriptor)
            wait_until(lambda: client._caller._connection._monitor.poll(0))
            wait_until(lambda: not serving._connected and (patience or not serving._clients))
        client.push("v", [np.ones(1)])
        assert client.pull("v")[0].item() == 1.0


def test_a_call_whose_answer_was_lost_is_not_executed_twice(serving, patience):
    with remembered_for_no_time(serving) as client:
        client.init("w", [np.zeros(1)])
        client.push("w", [np.ones(1)])
        wait_until(lambda: serving._store.entry("w").values[0].item() == 1.0)
        client._caller._connection.receive = lambda timeout: None
        client._caller._disconnect()  # without the answer
        wait_until(lambda: not serving._connected and (patience or not serving._clients))
        if patience:
            assert client.pull("w")[0].item() == 1.0
        else:
            with pytest.raises(ValueError, match="if the server was restarted, use a new client"):
                client.pull("w")
            assert serving._store.entry("w").values[0].item() == 1.0


def test_another_server_at_the_address_is_noticed_by_an_idle_client(serving):
    with connect(serving.address, serving.token) as client:
        client.init("w", [np.zeros(1)])
        client._caller._disconnect()
        wait_until(lambda: not serving._connected)
        serving._clients.clear()
        serving._id = "of another one"
        with pytest.raises(ValueError, match="if the server was restarted, use a new client"):
            client.init("w", [np.zeros(1)])


def test_a_client_that_waits_for_longer_is_remembered_for_as_long(serving, monkeypatch):
    monkeypatch.setattr(server_loop, "_FORGET_SECONDS", 0.0)
    with connect(serving.address, serving.token, timeout=10**6) as client:
        client.init("w", [np.zeros(1)])
        client._caller._disconnect()
        wait_until(lambda: serving._absent)
        serving._forget_absent()
        assert len(serving._clients) == 1
