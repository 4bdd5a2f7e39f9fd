"""The director: who is let in as what, and what they say in the order in which they say it."""

import socket

import pytest
import torch

from compss_train.online.connection import Address, ConnectionLostError
from compss_train.online.event_server import Director
from tests.buffers.kinds import DEADLINE
from tests.online.parts import HERE, TOKEN, frame, nothing_left


@pytest.fixture
def kept():
    return []


@pytest.fixture
def director(kept):
    with nothing_left(), Director(HERE, lambda worker, saved: kept.append((worker, saved.tolist()))) as director:
        yield director


def test_every_director_has_a_secret_of_its_own_that_is_not_shown(director):
    with Director(HERE, lambda *_: None) as other:
        secrets = {director.address.token, other.address.token}
    assert len(secrets) == 2
    assert all(len(secret) >= 16 and secret not in repr([director.address, other.address]) for secret in secrets)


def test_senders_are_let_in_by_their_own_token_and_only_as_senders(director):
    director.let_in_senders(HERE, 0, TOKEN)
    door, own = director._listeners[-1].address, director.address
    for port, token, role, reason in [
        (door.port, own.token, "sender", "the token"),
        (own.port, TOKEN, "sender", "the token"),
        *(
            (door.port, TOKEN, role, f"for sender, not for {role}")
            for role in ("worker", "simulation", "evaluation")
        ),
    ]:
        with Address(HERE, port, token).connect({"hello": role, "number": 0}) as stranger:
            assert reason in stranger.receive()[0]["error"]
            with pytest.raises(ConnectionLostError):
                stranger.receive()
    assert director.next(0) is None
    with door.connect({"hello": "sender", "name": "a"}):
        assert director.next(DEADLINE).peer.name == "a"
    assert director.next(DEADLINE).header is None


@pytest.mark.parametrize("role", ["worker", "sender", "simulation"])
def test_what_workers_save_is_kept_before_it_is_told_of_and_nobody_elses(director, kept, role):
    with director.address.connect({"hello": role, "number": 3}) as peer:
        director.next(DEADLINE)
        peer.send({"saved": [[0, 5]]}, [torch.arange(3)])
        said = director.next(DEADLINE)
    assert said.header == {"saved": [[0, 5]]}
    assert (kept, len(said.arrays)) == (([(3, [0, 1, 2])], 0) if role == "worker" else ([], 1))


def test_something_large_is_told_while_others_are_heard(director):
    large = torch.zeros(2**23, dtype=torch.uint8)
    with director.address.connect({"hello": "worker", "number": 0}) as peer:
        event = director.next(DEADLINE)
        event.peer.tell_aside({"go": True}, lambda: [large])  # which is more than TCP holds
        peer.send({"n": 1})
        assert director.next(DEADLINE).header == {"n": 1}
        header, [came] = peer.receive()
        assert (header, len(came)) == ({"go": True}, len(large))


def test_what_peers_say_comes_in_the_order_of_each_and_ends_with_none(director):
    with director.address.connect({"hello": "sender", "name": "a"}) as one:
        first = director.next(DEADLINE)
        assert (first.peer.role, first.peer.name, first.peer.number) == ("sender", "a", None)
        for number in range(5):
            one.send({"n": number}, [torch.tensor(number)])
        first.peer.tell({"hi": 1})
        assert one.receive()[0] == {"hi": 1}
    said = [director.next(DEADLINE) for _ in range(6)]
    assert [each.header for each in said] == [*({"n": number} for number in range(5)), None]
    assert [int(each.arrays[0]) for each in said[:-1]] == list(range(5))
    assert {each.peer for each in said} == {first.peer}
    first.peer.tell({"nobody": "hears it"})
    assert director.next(0) is None


@pytest.mark.parametrize(
    "said",
    [b"\xff" * 9, frame({"arrays": [["uint8", [2**60]]]}), frame({"arrays": [["uint8", [-1]]]}), b"\1"],
    ids=["garbage", "an array too large", "no shape", "a length that is cut"],
)
def test_a_peer_that_says_what_is_no_message_leaves(director, said):
    with director.address.connect({"hello": "sender"}) as peer:
        assert director.next(DEADLINE).header["hello"] == "sender"
        peer._socket.sendall(said)
        peer._socket.shutdown(socket.SHUT_WR)
        assert director.next(DEADLINE).header is None
        with pytest.raises(ConnectionLostError):
            peer.receive()


def test_a_hello_that_does_not_say_what_it_is_does_no_harm(director):
    with director.address.connect({}) as peer, pytest.raises(ConnectionLostError):
        peer.receive()
    assert director.next(0) is None
