"""A server that other programs reach, and a client of it."""

import pytest

from compss_train.net.sockets import LOOPBACK
from compss_train.parameter_server import connect, serve


@pytest.fixture
def tcp_serving():
    with serve(LOOPBACK) as serving:
        yield serving


@pytest.fixture
def serving(tcp_serving):
    """The server that ``client`` talks to; a module may have others."""
    return tcp_serving


@pytest.fixture
def client(serving):
    with connect(serving.address, serving.token) as client:
        yield client
