"""The event server: which clients it accepts, and the order of their events; what streams get to
know.
"""

import pytest
import torch

from compss_train.net.connection import Address
from compss_train.online.events import EventServer
from tests.helpers.waiting import LIMIT, awaited, wait_until
from tests.net.plain_clients import HERE, TOKEN, no_threads_left


@pytest.fixture
def server():
    with no_threads_left(), EventServer(HERE) as server:
        yield server


def test_every_server_has_its_own_token_which_repr_hides(server):
    with EventServer(HERE) as other:
        tokens = {server.address.token, other.address.token}
    assert len(tokens) == 2
    assert all(
        len(token) >= 16 and token not in repr([server.address, other.address]) for token in tokens
    )
    assert server.address.url.startswith("ipc://")  # nobody else can connect


def test_tokens_of_senders_never_act_as_those_of_tasks(server):
    senders = server.listen_for_senders(f"tcp://{HERE}:*", TOKEN)
    own = server.address
    with pytest.raises(PermissionError, match="the token is not the server's"):
        Address(senders.url, own.token).connect({"role": "worker", "number": 0})
    with Address(own.url, TOKEN).connect({"role": "worker", "number": 0}) as refused:
        assert server.next(0.3) is None
        with pytest.raises(PermissionError, match="the token is not the server's"):
            refused.receive(LIMIT)
    for address, role in [(senders, role) for role in ("worker", "simulation", "evaluation")] + [
        (own, "sender")
    ]:
        with address.connect({"role": role, "number": 0}) as rejected:
            assert server.next(0.1) is None
            assert (
                f"role {role!r}; this address is for others" in rejected.receive(LIMIT)[0]["error"]
            )
            rejected.send({"checkpoint": True}, [torch.zeros(2)])  # it gets no role by insisting
            assert server.next(0.1) is None
    with senders.connect({"role": "sender", "name": "a"}):
        assert server.next(LIMIT)[1]["name"] == "a"
    assert next_event(server)[1] is None


def test_a_loss_is_reported_before_the_greeting_of_the_replacement(server):
    greeting = {"role": "worker", "number": 3}
    with (
        server.address.connect(greeting),
        server.address.connect({"role": "worker", "number": 4}) as one,
    ):
        others = [next_event(server)[0] for _ in range(2)]
        (first,) = (client for client in others if client.greeting["number"] == 4)
        with server.address.connect({"role": "worker", "number": 4}):
            second, header, _ = next_event(server)
            assert header is second.greeting  # the first one is still there
        assert next_event(server)[:2] == (second, None)
        one.close()
        wait_until(lambda: first.is_closed)
        with server.address.connect({"role": "worker", "number": 4}):
            assert next_event(server)[:2] == (first, None)
            third, header, _ = next_event(server)
            assert header is third.greeting
            assert server.next(0.1) is None


def test_a_replacement_is_reported_after_the_last_messages_of_the_lost(server):
    greeting = {"role": "worker", "number": 4}
    with server.address.connect(greeting) as one:
        first = next_event(server)[0]
        for number in range(4):
            one.send({"report": number})
    wait_until(lambda: first.is_closed)
    with server.address.connect(greeting) as two:
        events = [next_event(server) for _ in range(6)]
        assert [header for _, header, _ in events[:4]] == [
            {"report": number} for number in range(4)
        ]
        assert events[4][:2] == (first, None)
        assert events[5][1] is events[5][0].greeting
        assert server.next(0.1) is None
        events[5][0].send({"accepted": True})
        assert two.receive(LIMIT)[0] == {"accepted": True}


def test_events_keep_each_clients_order_and_end_with_a_disconnect(server):
    with server.address.connect({"role": "worker", "number": 3}) as one:
        first, header, _ = server.next(LIMIT)
        assert header is first.greeting
        assert header == {"role": "worker", "number": 3}
        for number in range(5):
            one.send({"n": number}, [torch.tensor(number)])
        first.send({"hi": 1}, [torch.zeros(2**22)])
        header, [came] = one.receive()
        assert (header, came.shape) == ({"hi": 1}, (2**22,))
    events = [next_event(server) for _ in range(6)]
    assert [header for _, header, _ in events] == [*({"n": number} for number in range(5)), None]
    assert [int(arrays[0].tensor()) for _, _, arrays in events[:-1]] == list(range(5))
    assert {client for client, _, _ in events} == {first}
    first.send({"ignored": "disconnected"})
    assert server.next(0) is None


def next_event(server):
    return awaited(lambda: server.next(0.1))
