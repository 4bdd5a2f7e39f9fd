"""The event server: which clients it accepts, and the order of their events."""

import socket

import pytest
import torch

from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Address
from compss_train.online.event_server import RECONNECT_SECONDS, EventServer, TaskLiveness
from tests.buffers.kinds import DEADLINE
from tests.online.bare_connections import HERE, TOKEN, encode_for, no_threads_left


@pytest.fixture
def stored():
    return []


@pytest.fixture
def server(stored):
    with (
        no_threads_left(),
        EventServer(HERE, lambda worker, data: stored.append((worker, data.tolist()))) as server,
    ):
        yield server


def test_every_server_has_its_own_secret_which_repr_hides(server):
    with EventServer(HERE, lambda *_: None) as other:
        secrets = {server.address.token, other.address.token}
    assert len(secrets) == 2
    assert all(len(secret) >= 16 and secret not in repr([server.address, other.address]) for secret in secrets)


def test_the_address_for_senders_has_its_own_token_and_accepts_only_senders(server):
    server.listen_for_senders(HERE, 0, TOKEN)
    sender_address, own = server._listeners[-1].address, server.address
    for port, token in [(sender_address.port, own.token), (own.port, TOKEN)]:
        with pytest.raises(PermissionError, match="wrong token; use the token= given to fit_online"):
            Address(HERE, port, token).connect({"role": "sender", "number": 0})
    for role in ("worker", "simulation", "evaluation"):
        with sender_address.connect({"role": role, "number": 0}) as rejected:
            assert f"role {role!r}; this address accepts 'sender'" in rejected.receive()[0]["error"]
            with pytest.raises(ConnectionLostError):
                rejected.receive()
    assert server.next(0) is None
    with sender_address.connect({"role": "sender", "name": "a"}):
        assert server.next(DEADLINE).client.name == "a"
    assert server.next(DEADLINE).header is None


@pytest.mark.parametrize("role", ["worker", "sender", "simulation"])
def test_only_checkpoints_of_workers_are_stored_before_their_event(server, stored, role):
    with server.address.connect({"role": role, "number": 3}) as client:
        server.next(DEADLINE)
        client.send({"checkpoint": [[0, 5]]}, [torch.arange(3)])
        event = server.next(DEADLINE)
    assert event.header == {"checkpoint": [[0, 5]]}
    assert (stored, len(event.arrays)) == (([(3, [0, 1, 2])], 0) if role == "worker" else ([], 1))


def test_a_checkpoint_that_cannot_be_stored_does_not_disconnect_its_worker():
    def store(worker, data):
        raise OSError("no space left on device")

    with EventServer(HERE, store) as server, server.address.connect({"role": "worker", "number": 3}) as client:
        server.next(DEADLINE)
        client.send({"checkpoint": [[0, 5]]}, [torch.arange(3)])
        client.send({"n": 1})
        events = [server.next(DEADLINE) for _ in range(2)]
    assert [event.header for event in events] == [{"not_stored": "no space left on device"}, {"n": 1}]


def test_large_messages_are_sent_in_the_background(server):
    large = torch.zeros(2**23, dtype=torch.uint8)
    with server.address.connect({"role": "worker", "number": 0}) as client:
        event = server.next(DEADLINE)
        event.client.send_in_background({"accepted": True}, lambda: [large])  # more than TCP buffers
        client.send({"n": 1})
        assert server.next(DEADLINE).header == {"n": 1}
        header, [came] = client.receive()
        assert (header, len(came)) == ({"accepted": True}, len(large))


def test_events_keep_each_clients_order_and_end_with_a_disconnect(server):
    with server.address.connect({"role": "sender", "name": "a"}) as one:
        first = server.next(DEADLINE)
        assert (first.client.role, first.client.name, first.client.number) == ("sender", "a", None)
        for number in range(5):
            one.send({"n": number}, [torch.tensor(number)])
        first.client.send({"hi": 1})
        assert one.receive()[0] == {"hi": 1}
    events = [server.next(DEADLINE) for _ in range(6)]
    assert [each.header for each in events] == [*({"n": number} for number in range(5)), None]
    assert [int(each.arrays[0]) for each in events[:-1]] == list(range(5))
    assert {each.client for each in events} == {first.client}
    first.client.send({"ignored": "disconnected"})
    assert server.next(0) is None


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 9, {"arrays": [["uint8", [2**60]]]}, {"arrays": [["uint8", [-1]]]}, b"\1"],
    ids=["garbage", "an array too large", "an invalid shape", "a truncated length"],
)
def test_a_malformed_message_disconnects_the_client(server, data):
    with server.address.connect({"role": "sender"}) as client:
        assert server.next(DEADLINE).header["role"] == "sender"
        client._socket.sendall(encode_for(client, data) if isinstance(data, dict) else data)
        client._socket.shutdown(socket.SHUT_WR)
        assert server.next(DEADLINE).header is None
        with pytest.raises(ConnectionLostError):
            client.receive()


def test_a_handshake_without_role_is_rejected(server):
    with server.address.connect({}) as client, pytest.raises(ConnectionLostError):
        client.receive()
    assert server.next(0) is None


def test_a_task_that_does_not_reconnect_in_time_is_lost():
    now = [100.0]
    liveness = TaskLiveness(lambda: now[0])
    now[0] += 2 * RECONNECT_SECONDS
    assert not liveness.is_lost  # it never connected
    liveness.connect("client")
    now[0] += 2 * RECONNECT_SECONDS
    assert not liveness.is_lost
    liveness.disconnect()
    now[0] += RECONNECT_SECONDS
    assert not liveness.is_lost
    now[0] += 1
    assert liveness.is_lost
    liveness.connect("client")
    assert not liveness.is_lost
