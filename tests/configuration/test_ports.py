import socket

import pytest

from compss_train.configuration import ports
from compss_train.configuration.ports import FIRST_PORT, LAST_PORT, PORTS, free_first_port


def test_free_ports():
    first = free_first_port(3)
    assert FIRST_PORT <= first <= LAST_PORT - 3 * PORTS
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not ports._is_free(listener.getsockname()[1])


def test_no_free_ports(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 10 free ports in a row"):
        free_first_port(1)
