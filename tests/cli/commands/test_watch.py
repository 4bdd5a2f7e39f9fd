"""``compss-train watch`` prints an address once, says when the run ends, and serves until Ctrl-C."""

import re
import socket
import threading
from urllib.request import urlopen

from compss_train.cli.commands import watch
from compss_train.cli.run_files.run_folder import RUNNING, RunFolder


def test_a_run_is_shown_until_ctrl_c_also_when_it_has_ended(fitted, command, monkeypatch, capsys):
    folder, printed = RunFolder(fitted), []
    folder.write_state(RUNNING)

    def turn(_):
        """Stand for the time until files are looked at again."""
        printed.append(capsys.readouterr().out)
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", printed[0])[0]
        state = ["running", "complete", "running", "failed: ValueError"][len(printed) - 1]
        with urlopen(address, timeout=20) as page:
            assert b"Training of " in page.read()
        folder.write_state(state)
        if len(printed) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", turn)
    threads = set(threading.enumerate())
    assert command("watch", fitted).err == ""
    assert not any("serve_forever" in thread.name for thread in set(threading.enumerate()) - threads)
    start, *later = printed
    assert start.startswith(f"{fitted} (running, 3 rounds) is shown at")
    port = re.search(r"http://127\.0\.0\.1:(\d+)/", start)[1]
    assert f"ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}\n" in start
    assert later == ["", f"{fitted} has ended: complete; the page stays\n", f"{fitted} goes on; the page stays\n"]


def test_what_cannot_be_watched_is_an_error(fitted, command):
    assert "nowhere: no run is here" in command("watch", "nowhere", code=2).err
    assert "port 70000: give 0 to 65535" in command("watch", fitted, "--port", "70000", code=2).err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of this machine is in use" in command("watch", fitted, "--port", port, code=2).err
