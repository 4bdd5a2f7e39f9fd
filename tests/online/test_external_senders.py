"""Other programs that send samples, as the coordinator of a fit sees them."""

import itertools
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from compss_train.exceptions import SimulationError
from compss_train.net import MessageError
from compss_train.online.external_senders import FIRST_NOTICE, ExternalSenders
from compss_train.online.online_job import OnlineJob
from compss_train.online.saves import SavedWorker
from compss_train.online.workers import Worker


class StubRouter:
    """Numbers streams; ``lost`` are the workers that have died since a stream was accepted."""

    def __init__(self):
        self.number = itertools.count().__next__
        self.lost = []

    def register(self, client, stream):
        pass

    def unregister(self, client):
        pass

    def lost_workers(self, client):
        return self.lost


@pytest.fixture
def router():
    return StubRouter()


@pytest.fixture
def senders(router):
    return ExternalSenders(2, router)


def connected(senders, name=None):
    client = Mock(greeting={"role": "sender", "name": name})
    senders.handle(client, client.greeting)
    return client


def complete(senders, samples, name=None):
    senders.handle(connected(senders, name), {"finished": samples})


def worker_with(offsets):
    """Return worker 1 of 2 with the offsets of its last save, if there is one.

    Of streams 0 and 1 with 5 and 4 samples it gets samples 1 and 3, and 0 and 2.
    """
    job = OnlineJob(
        coordinator=None,
        keys=None,
        host=None,
        server_address=None,
        num_workers=2,
        options=SimpleNamespace(pairing=None),
        seed=0,
    )
    worker = Worker(1, job, None, lambda: None)
    worker.part = None if offsets is None else SavedWorker(None, {}, offsets)
    return worker


@pytest.mark.parametrize(
    ("offsets", "lost"), [(None, "4 samples of 2"), ({0: 4, 1: 1}, "1 samples of 1")]
)
def test_samples_of_senders_without_a_name_that_a_dead_worker_has_lost_end_the_fit(
    senders, offsets, lost, raises
):
    complete(senders, 5)
    complete(senders, 4)
    with raises(SimulationError, f"{lost} senders without a name"):
        senders.lose_samples(worker_with(offsets))


def test_a_sender_with_a_name_is_expected_again_if_a_dead_worker_has_lost_its_samples(senders):
    complete(senders, 5, "a")
    complete(senders, 4, "b")
    complete(senders, 0)  # more than are expected
    senders.closed = senders.all_ended
    with pytest.warns(UserWarning, match="with 1 samples of sender 'b', which has ended: the fit"):
        senders.lose_samples(worker_with({0: 4, 1: 1}))
    assert not senders.all_ended
    late = connected(senders, "c")
    late.send.assert_called_with({"accepted": False})
    complete(senders, 4, "b")
    assert senders.all_ended
    assert senders.counts() == {"running": 0, "done": 3, "failed": 0}


def test_what_a_connected_sender_has_lost_is_said(senders, router, raises):
    named = connected(senders, "a")
    nameless = connected(senders)
    router.lost = ["a worker"]
    with pytest.warns(UserWarning, match="sender 'a' goes on without 3 samples, which are lost"):
        senders.handle(named, {"lost": 3})
    with raises(SimulationError, "2 samples of a sender without a name"):
        senders.handle(nameless, {"lost": 2})
    with pytest.raises(MessageError, match="lost=-1"):
        senders.handle(nameless, {"lost": -1})


def test_a_sender_whose_connection_broke_cannot_end_the_fit_by_what_it_lost(senders):
    """No worker has died: the fit takes its word for its own samples only."""
    with pytest.warns(UserWarning, match="a sender goes on without 2 samples, which are lost"):
        senders.handle(connected(senders), {"lost": 2})


def test_a_save_counts_what_it_lacks_of_senders_without_a_name(senders, router):
    complete(senders, 5)
    complete(senders, 4, "b")
    saved = senders.state_dict([worker_with({0: 2})])
    assert saved["completed"] == [[0, 5]]
    again = ExternalSenders(2, router)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.resume(saved)
    told = [str(warning.message) for warning in caught]
    assert "lacks 1 samples of senders without a name" in told[0]
    assert "lacks samples of sender 'b'" in told[1]
    assert not again.all_ended


def test_a_fit_that_goes_on_names_the_senders_that_it_waits_for(senders):
    with pytest.warns(
        UserWarning, match=("the save lacks samples of sender 'a': the fit waits for it")
    ):
        senders.resume(
            {"streams": [["a", 0], ["b", 1]], "completed": [[1, 5]], "failed": 0, "lost": 0}
        )
    assert not senders.all_ended


# Who is awaited


def said_until(senders, clock, seconds):
    """Check every second, so long; return the seconds at which there was a warning, and the last.

    Its text is that of the last warning.
    """
    moments = []
    text = ""
    for second in range(seconds):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            senders.check()
        if caught:
            moments.append(second)
            text = str(caught[-1].message)
        clock.now += 1
    return moments, text


def test_who_is_awaited_is_said_again_and_again(senders, clock):
    moments, text = said_until(senders, clock, 100)
    assert moments == [FIRST_NOTICE + 1, 23, 47, 95]
    assert text.startswith("the fit has waited 95 s for 2 of 2 senders, which must connect")
    sender = connected(senders, "a")
    moments, text = said_until(senders, clock, 15)
    assert moments == [FIRST_NOTICE + 1]
    assert "for 1 of 2 senders" in text
    connected(senders)
    assert said_until(senders, clock, 100) == ([], "")
    with pytest.warns(UserWarning, match="sender 'a' has failed and may reconnect"):
        senders.handle(sender, {"failed": "why"})
    _, text = said_until(senders, clock, 15)
    assert "for sender 'a', which must connect" in text


def test_nobody_is_awaited_once_all_have_connected_or_training_ends(senders, clock):
    senders.closed = True
    assert said_until(senders, clock, 100) == ([], "")
    senders.closed = False
    complete(senders, 1)
    complete(senders, 1)
    assert said_until(senders, clock, 100) == ([], "")


def test_a_fit_ends_when_senders_do_not_come_in_time(router, clock, raises):
    senders = ExternalSenders(2, router, timeout=5)
    assert said_until(senders, clock, 5) == ([], "")
    connected(senders, "a")
    assert said_until(senders, clock, 6) == ([], "")
    with raises(SimulationError, "senders_timeout=5: 1 of 2 senders"):
        senders.check()
