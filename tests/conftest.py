"""Fixtures for all tests: the engines, and small networks and data."""

from collections.abc import Iterator

import pytest

from compss_train import Engine, LocalEngine, SerialEngine


@pytest.fixture(scope="session")
def shared_local() -> Iterator[LocalEngine]:
    """One local engine for all tests that leave it working: starting processes takes seconds."""
    with LocalEngine(processes=2) as engine:
        yield engine


@pytest.fixture(params=["serial", "local"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every engine in turn."""
    return SerialEngine() if request.param == "serial" else request.getfixturevalue("shared_local")
