"""The engine of online fits, and waits that are short."""

import pytest

from compss_train.engines import Resources
from compss_train.online import sender, watchdog


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
