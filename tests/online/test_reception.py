"""Who is told when a stream may begin, and where workers are."""

from types import SimpleNamespace

import pytest

from compss_train.online.stream_router import Reception
from tests.online.parts import HERE, KEY


class Asking:
    """A stream's control connection, that keeps what it is told."""

    def __init__(self):
        self.told = []

    def tell(self, header):
        self.told.append(header)

    def heard(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def workers():
    return [SimpleNamespace(number=number, place=[HERE, number], runs=1) for number in range(3)]


@pytest.mark.parametrize("paired", [False, True])
def test_streams_are_welcome_when_all_workers_have_places(workers, paired):
    reception, peers = Reception(workers, KEY, paired=paired), [Asking() for _ in range(3)]
    for worker in workers:
        worker.place = None
    for number, worker in enumerate(workers):
        reception.welcome(peers[number], 7 + number)
        assert [peer.told for peer in peers] == [[], [], []]
        if number == 1:
            reception.leave(peers[0])  # it does not wait any longer
        worker.place = [HERE, number]
        reception.look()
    places = [[HERE, 0], [HERE, 1], [HERE, 2]]
    answers = [{"go": True, "stream": 7 + n, "workers": places, "key": KEY, "paired": paired} for n in range(3)]
    assert [peer.told for peer in peers] == [[], answers[1:2], answers[2:]]
    reception.look()
    assert [len(peer.heard()) for peer in peers] == [0, 1, 1]  # each once
    reception.welcome(peers[0], 7)
    assert peers[0].told == answers[:1]


def test_a_place_is_sought_until_there_is_another_one(workers):
    reception, peer, other = Reception(workers, KEY, paired=False), Asking(), Asking()
    lost = {"lost": 1, "place": list(workers[1].place)}
    reception.seek(peer, lost)
    reception.seek(other, lost)
    for place in (workers[1].place, None):
        workers[1].place = place
        workers[0].place = [HERE, 99]  # is not what it asks for
        reception.look()
        assert peer.told == []
    reception.leave(other)
    workers[1].place, workers[2].place = [HERE, 5], None  # others may be away
    for _ in range(2):
        reception.look()
    assert (peer.heard(), other.told) == ([{"place": [HERE, 5]}], [])
    reception.seek(peer, lost)  # there is one already
    assert peer.heard() == [{"place": [HERE, 5]}]
    reception.seek(peer, {"lost": 1})  # from nowhere
    assert peer.heard() == [{"place": [HERE, 5]}]


@pytest.mark.parametrize("lost", [-1, 3, "x", None])
def test_a_worker_that_there_is_none_of_is_not_sought(workers, lost):
    reception, peer = Reception(workers, KEY, paired=False), Asking()
    with pytest.raises((ValueError, TypeError)):
        reception.seek(peer, {"lost": lost})
    reception.look()
    assert peer.told == []


def test_who_leaves_learns_which_workers_have_died_since_it_was_welcome(workers):
    reception, peers = Reception(workers, KEY, paired=False), [Asking() for _ in range(3)]
    reception.welcome(peers[0], 0)
    workers[1].place = None
    reception.welcome(peers[1], 1)  # it is answered by all as they are later
    workers[1].runs, workers[1].place = 2, [HERE, 9]
    reception.look()
    workers[2].runs += 1
    assert reception.leave(peers[0]) == workers[1:]
    assert reception.leave(peers[1]) == workers[2:]
    assert [reception.leave(peer) for peer in peers] == [[], [], []]


def test_only_those_who_send_are_told_that_a_worker_has_left(workers):
    reception, peers = Reception(workers, KEY, paired=False), [Asking() for _ in range(3)]
    reception.welcome(peers[0], 0)
    reception.welcome(peers[1], 1)
    reception.leave(peers[1])
    workers[2].place = None
    reception.welcome(peers[2], 2)
    for peer in peers:
        peer.heard()
    reception.tell_left(workers[2])
    assert [peer.told for peer in peers] == [[{"left": 2}], [], []]
