import socket

import pytest

from compss_train.engines.compss.configuration import nodes as ports
from compss_train.engines.compss.configuration.nodes import (
    FIRST_PORT,
    LAST_PORT,
    LOWEST_PORT,
    PORTS,
    free_first_port,
)


def test_free_ports():
    first = free_first_port(3)
    assert LOWEST_PORT <= first <= LAST_PORT - 3 * PORTS + 1
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not ports._is_free(listener.getsockname()[1])


def test_no_free_ports(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 10 free ports in a row"):
        free_first_port(1)


def test_ports_of_outgoing_connections_are_left_out(monkeypatch, tmp_path):
    given = tmp_path / "range"
    monkeypatch.setattr(ports, "OUTGOING", given)
    monkeypatch.setattr(ports, "_is_free", lambda port: True)
    given.write_text(f"{LOWEST_PORT + 20}\t{LAST_PORT - 10}\n")
    for _ in range(50):
        first = free_first_port(1)
        assert first + PORTS <= LOWEST_PORT + 20 or first > LAST_PORT - 10
    given.unlink()
    assert free_first_port(1) >= FIRST_PORT
