"""``compss-train watch``: a page that shows a run while it trains, on this machine or through an ssh tunnel."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from compss_train.cli.commands.base import Command

if TYPE_CHECKING:
    from compss_train.cli.run_files.report_server import ReportServer


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "folder of a run, or a history in JSON lines, of which a process may be training"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    port = "the port to listen at, on the loopback interface (default: any free one)"
    parser.add_argument("--port", type=int, default=0, metavar="N", help=port)


def _run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from compss_train.cli.run_files.live_report import LiveReport
    from compss_train.cli.run_files.report_server import ReportServer

    with ReportServer(LiveReport(options.run), options.port) as server, suppress(KeyboardInterrupt):
        thread = threading.Thread(target=server.serve_forever, args=[0.1], daemon=True)
        thread.start()
        try:
            _print_start(server, options.run)
            _print_states(server, options.run)
        finally:
            server.shutdown()  # the thread would go on to poll the number of a closed socket
            thread.join()
    return 0


def _print_start(server: ReportServer, run: Path) -> None:
    state = server.report.folder.state() or "state unknown"
    print(f"{run} ({state}, {server.report.rounds} rounds) is shown at\n\n    {server.address}\n")
    tunnel = f"ssh -N -L {server.port}:127.0.0.1:{server.port} {socket.gethostname()}"
    print(f"On another machine, start this first:  {tunnel}\nCtrl-C ends the page, not the run.", flush=True)


def _print_states(server: ReportServer, run: Path) -> None:
    """Print a line when the run ends, and when it goes on."""
    from compss_train.cli.run_files.report_server import POLL_SECONDS
    from compss_train.cli.run_files.run_folder import RUNNING

    shown = server.report.folder.state()
    while True:
        time.sleep(POLL_SECONDS)
        state = server.report.folder.state()
        if state not in (shown, None):
            print(f"{run} {'goes on' if state == RUNNING else f'has ended: {state}'}; the page stays", flush=True)
            shown = state


WATCH = Command(
    name="watch",
    help="show a run in a browser while it trains, with each round as it comes",
    add_arguments=_add_arguments,
    run=_run,
    examples="""\
  compss-train watch runs/spirals
  compss-train watch runs/spirals --port 8800

The address that is printed is one of this machine only. For a run on a cluster, start this command where the
run's folder is, such as on a login node, and on your own machine:  ssh -N -L 8800:127.0.0.1:8800 LOGIN-NODE""",
)
