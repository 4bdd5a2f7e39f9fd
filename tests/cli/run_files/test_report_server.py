"""The server shows a run to those who know its address, and pushes what comes to all of them."""

import json
import re
import socket
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from compss_train.cli.run_files import report_server
from compss_train.cli.run_files.live_report import LiveReport
from compss_train.cli.run_files.report_server import ReportServer
from tests.cli.run_files.running_runs import folder, no_waiting, write_rounds

__all__ = ["folder", "no_waiting"]


@pytest.fixture
def server(folder, monkeypatch):
    monkeypatch.setattr(report_server, "POLL_SECONDS", 0.01)
    with ReportServer(LiveReport(folder.path)) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=[0.01])
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def get(server, path, **headers):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def events(server, **headers):
    """Iterate over the pushed parts, each with its version."""
    stream = get(server, f"/{server.token}/events", **headers)
    assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    version = None
    for line in stream:
        if line.startswith(b"id: "):
            version = int(line[4:])
        elif line.startswith(b"data: "):
            yield version, json.loads(line[6:])


def test_the_page_has_everything_before(server, folder):
    write_rounds(folder, 3)
    response = get(server, urlsplit(server.address).path)
    page = response.read().decode()
    assert (response.status, response.headers["Cache-Control"]) == (200, "no-store")
    version, parts = server.report.changes(0)
    assert all(part in page for part in parts.values())
    assert f'data-version="{version}"' in page
    assert not re.search(r'src=|href="(?!data:,)|http-equiv', page)


def test_every_viewer_gets_each_change_and_late_ones_everything(server, folder):
    viewers = [events(server) for _ in range(2)]
    versions = set()
    for viewer in viewers:
        version, parts = next(viewer)
        versions.add(version)
        assert "No round has ended yet" in parts["figures"]
    write_rounds(folder, 1)
    for viewer in viewers:
        version, parts = next(viewer)
        assert version > max(versions)
        assert set(parts) == {"head", "figures", "curves", "workers", "rounds"}
    late, parts = next(events(server))
    assert (late, parts) == server.report.changes(0)


def test_a_viewer_that_comes_back_gets_what_it_has_missed(server, folder):
    version, _ = server.report.changes(0)
    folder.write_state("complete")
    assert set(next(events(server, **{"Last-Event-ID": str(version)}))[1]) == {"head"}
    assert set(next(events(server, **{"Last-Event-ID": "x"}))[1]) == set(server.report.changes(0)[1])


@pytest.mark.parametrize("path", ["/", "/events", "/wrong/", "/wrong/events", "//", "/%00/", "/?version=1"])
def test_requests_without_the_token_are_refused(server, path):
    response = get(server, path)
    assert response.status == 403
    assert b"use the address that compss-train watch has printed" in response.read()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9999", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("[", 403),
        ("", 403),
    ],
)
def test_other_names_of_hosts_are_refused(server, host, status):
    assert get(server, f"/{server.token}/", Host=host).status == status


def test_there_are_no_other_pages(server):
    assert get(server, f"/{server.token}/config.toml").status == 404
    assert get(server, f"/{server.token}/../../etc/passwd").status == 404


def test_tokens_differ_and_only_this_machine_is_listened_to(server, folder):
    with ReportServer(server.report) as other:
        assert other.token != server.token
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32


def test_ports_that_cannot_be_used_are_an_error(server):
    with pytest.raises(ValueError, match=f"port {server.port} of this machine is in use"):
        ReportServer(server.report, server.port)
    with pytest.raises(ValueError, match="port 70000: give 0 to 65535"):
        ReportServer(server.report, 70000)


def test_viewers_that_go_leave_the_server_running(server, folder, capsys):
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(f"GET /{server.token}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with socket.create_connection(("127.0.0.1", server.port)) as broken:
        broken.sendall(b"\x00\x01 nonsense\r\n\r\n")
        assert broken.recv(100)
    write_rounds(folder, 1)
    assert next(events(server))
    assert capsys.readouterr() == ("", "")
