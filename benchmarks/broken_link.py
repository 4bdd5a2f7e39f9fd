"""A link that breaks in the middle of a fit on Ray, and is mended: does the fit go on, and with the same bits?

Two nodes as in ``network``. A fit that ends with an error, or takes too long, is started again in a new cluster,
and continues from its checkpoint. Needs root.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import _network_parts as parts
from _common import image_source, parser, print_table, threads_of_children
from _compss import call
from _network_parts import Job
from network import RAY_PORT, Network, nodes_of, ray_in, skip_without_network

CUT_NODE = 1
"""The program runs in node 0."""
BROKEN_ROUND = "round-000003"
"""The checkpoint after which the link breaks."""


def fit(network: Network, folder: str, job: Job, patience: float, keepalive: float) -> dict[str, Any] | str:
    """Fit on Ray; return what ``repeatable`` does, or the last line of what the program says."""
    names = ("grpc_client_keepalive_time_ms", "grpc_client_keepalive_timeout_ms")
    settings = json.dumps(dict.fromkeys(names, int(1000 * keepalive)))
    address = f"RAY_ADDRESS={network.addresses[0]}:{RAY_PORT}"
    within = [*network.within(0), "timeout", f"{patience:g}", "env", address]
    with ray_in(network, *([f"--system-config={settings}"] if keepalive else [])):
        try:
            found: dict[str, Any] = call(parts.repeatable, "ray", folder, asdict(job), within=within)
            return found
        except RuntimeError as error:
            return str(error).strip().splitlines()[-1]


def break_link(network: Network, folder: str, after: float, down: float) -> None:
    """Break the link so many seconds after the checkpoint, and mend it."""
    while not Path(folder, BROKEN_ROUND).exists():
        time.sleep(0.05)
    time.sleep(after)
    network.plug(CUT_NODE, "down")
    time.sleep(down)
    network.plug(CUT_NODE, "up")


def row(network: Network, job: Job, options: argparse.Namespace, after: float, bits: str) -> list[str]:
    """Break a link once, and return the cells of the table."""
    with TemporaryDirectory() as folder:
        threading.Thread(target=break_link, args=(network, folder, after, options.down), daemon=True).start()
        ended = fit(network, folder, job, options.patience, options.keepalive)
        how = "goes on"
        if isinstance(ended, str):
            how = f"ends: {ended}, and resumes"
            ended = fit(network, folder, job, options.patience, options.keepalive)
    if isinstance(ended, str):
        return [f"{after:g}", f"{how}: {ended}", "-", "-"]
    return [f"{after:g}", how, "yes" if ended["bits"] == bits else "NO", f"{max(ended['seconds'][1:]):.0f}"]


def main() -> None:
    options_parser = parser(__doc__, repetitions=1, epochs=6)
    add = options_parser.add_argument
    add("--samples", type=int, default=20_000, help="training images")
    add("--rate", type=float, default=100.0, help="Mbit/s")
    add("--down", type=float, default=30.0, help="seconds without a link")
    add("--after", type=float, nargs="+", default=[0.1, 1.5, 2.5], help="seconds from a checkpoint to the break")
    add("--keepalive", type=float, default=20.0, help="seconds between pings, and for an answer; 0: Ray's own")
    add("--patience", type=float, default=600.0, help="seconds until a fit has taken too long")
    options = options_parser.parse_args()
    if options.quick:
        options.after = options.after[:1]
    skip_without_network()
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs")
    job = Job("MLP", options.samples, options.epochs, seed=0, workers=2)
    with nodes_of(2) as network, threads_of_children(1), TemporaryDirectory() as folder:
        network.limit((options.rate, 0.0))
        whole = call(parts.repeatable, "local", folder, asdict(job))
        rows = [
            row(network, job, options, after, whole["bits"])
            for _ in range(options.repetitions)
            for after in options.after
        ]
    headers = ["s after a checkpoint", "the fit", "same bits as on the local engine", "longest later round, s"]
    print_table(f"A link of {options.rate:g} Mbit/s that is down for {options.down:g} s", headers, rows)


if __name__ == "__main__":
    main()
