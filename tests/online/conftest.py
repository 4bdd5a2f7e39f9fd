"""One local engine for all tests that leave it working."""

import pytest

from tests.online.simulations import the_engine


@pytest.fixture(scope="package")
def local():
    yield from the_engine()
