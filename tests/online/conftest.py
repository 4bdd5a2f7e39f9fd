"""The engine of online fits."""

import pytest

from compss_train.engines import Resources


@pytest.fixture
def local(shared_local):
    """The shared engine, with processes for two workers and two simulations."""
    shared_local.reserve([Resources()] * 4)
    return shared_local
