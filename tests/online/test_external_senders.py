"""Other programs that send samples, as the coordinator of a fit sees them."""

import itertools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from compss_train.online.external_senders import ExternalSenders
from compss_train.online.online_job import OnlineJob
from compss_train.online.saves import SavedWorker
from compss_train.online.workers import Worker


@pytest.fixture
def senders():
    router = SimpleNamespace(
        number=itertools.count().__next__,
        register=lambda *args: None,
        unregister=lambda client: None,
    )
    return ExternalSenders(2, router)


@pytest.mark.parametrize(
    ("offsets", "lost"), [(None, "4 samples of 2"), ({0: 4, 1: 1}, ("1 samples of 1"))]
)
def test_the_samples_of_senders_that_a_dead_worker_has_lost_are_counted(senders, offsets, lost):
    """Of streams 0 and 1 with 5 and 4 samples, worker 1 of 2 gets samples 1 and 3, and 0 and 2."""
    options = SimpleNamespace(pairing=None)
    job = OnlineJob(
        coordinator=None,
        key="",
        host=None,
        server_address=None,
        num_workers=2,
        options=options,
        seed=0,
    )
    worker = Worker(1, job, None, lambda: None)
    worker.part = None if offsets is None else SavedWorker(None, {}, offsets)
    for samples in (5, 4):
        client = Mock(greeting={"role": "sender", "name": None})
        senders.handle(client, client.greeting)
        senders.handle(client, {"finished": samples})
    with pytest.warns(UserWarning, match=f"^worker 1 has died; {lost} senders are lost"):
        senders.warn_lost_samples(worker)


def test_a_fit_that_goes_on_names_the_senders_that_it_waits_for(senders):
    with pytest.warns(
        UserWarning, match=("the save lacks samples of sender 'a': the fit waits for it")
    ):
        senders.resume({"streams": [["a", 0], ["b", 1]], "completed": [[1, 5]], "failed": 0})
    assert not senders.all_ended
