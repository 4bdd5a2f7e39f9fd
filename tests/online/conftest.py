"""An engine for online fits, workers that only receive, checks that threads end, short waits, and a
clock.
"""

import threading
import time
from types import SimpleNamespace

import pytest

from compss_train.engines import Resources
from compss_train.online import sender, simulation_task
from tests.callbacks.test_checkpoint import store
from tests.helpers.waiting import wait_until
from tests.online.stub_fits import make_stub

__all__ = ["make_stub", "store"]

FIT_THREADS = ("connections", "parameter-server", "watchdog")


@pytest.fixture
def local(shared_local):
    """The shared engine, with processes for two workers and two simulations."""
    shared_local.reserve([Resources()] * 4)
    return shared_local


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def short_waits(monkeypatch):
    """Senders retry soon, and no watchdog ends this process."""
    monkeypatch.setattr(sender, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(simulation_task, "_GRACE", 1000.0)


@pytest.fixture
def short_pauses(monkeypatch):
    """Streams that lose a worker hardly wait for the end of training, which does not come."""
    monkeypatch.setattr("compss_train.online.stream._PAUSE", 0.01)


@pytest.fixture
def check_threads():
    """Check that all threads of the coordinator end."""
    before = set(threading.enumerate())
    yield
    wait_until(
        lambda: not [t for t in threading.enumerate() if t not in before and t.name in FIT_THREADS]
    )
