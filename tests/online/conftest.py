"""The engine of online fits, workers that only receive, threads that must end, and waits that are short."""

import threading

import pytest

from compss_train.engines import Resources
from compss_train.online import sender, watchdog
from tests.helpers.processes import wait_until
from tests.online.parts import Place, nothing_left


@pytest.fixture
def local(shared_local):
    """The shared engine, with processes for two workers and two simulations."""
    shared_local.reserve([Resources()] * 4)
    return shared_local


@pytest.fixture
def short_waits(monkeypatch):
    """Senders try again soon, and no watchdog ends this process."""
    monkeypatch.setattr(sender, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "_GRACE", 1000.0)


@pytest.fixture
def short_pauses(monkeypatch):
    """Where training does not end, whoever loses a worker need not wait to see whether it has."""
    monkeypatch.setattr("compss_train.online.stream._PAUSE", 0.01)


@pytest.fixture
def no_threads_are_left():
    """Whatever happens, everything of the coordinator's ends."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not [t for t in threading.enumerate() if t not in before and is_of_a_fit(t)], 5)


def is_of_a_fit(thread):
    return thread.name in ("listener", "connection", "parameter-server", "stream-control")


@pytest.fixture
def places():
    """Make workers, which end with the test."""
    made = []

    def place(*args, **options):
        made.append(Place(*args, **options))
        return made[-1]

    with nothing_left():
        yield place
        for each in made:
            each.die()
