"""What do faults cost? The samples/s that are left if workers are killed, and a link that breaks and is mended.

The part ``kills`` kills a worker process again and again, on each engine. In ``link``, the link of two nodes of
``network`` breaks in the middle of a fit on Ray: does the fit go on, and with the same bits? One that ends with an
error, or takes too long, is started again in a new cluster and continues from its checkpoint. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import _common as common
import numpy as np
from _common import WORKERS, call, spread
from network import RAY_PORT, Network, nodes_of, ray_in, skip_without_network

SLOTS, FAULT_SECONDS = 32, 1800 / 62
"""A larger machine that is computed: torchft's own test had 62 faults in half an hour with so many replicas."""
CUT_NODE = 1
"""The program runs in node 0."""
BROKEN_ROUND = "round-000003"
"""The checkpoint after which the link breaks."""


# -- workers that are killed -------------------------------------------------------------------------------


def rate(engine: str, samples: int, epochs: int, every: float, folder: str) -> dict[str, float]:
    """Return the samples/s of a fit, and how many processes were killed, one every so many seconds."""
    images, stamp, over, killed = common.load_images(samples), common.Stamp(folder), threading.Event(), [0]

    def kill() -> None:
        while every and not over.wait(every):
            if pids := stamp.processes():
                os.kill(pids[killed[0] % len(pids)], signal.SIGKILL)
                killed[0] += 1

    with common.warm_trainer(common.network("MLP", 0), engine=engine, transform=stamp) as trainer:
        threading.Thread(target=kill, daemon=True).start()
        fitted = common.fit(trainer, images.x, images.y, epochs=epochs)
        over.set()
    return {"rate": fitted.rate, "kills": killed[0], "seconds": fitted.seconds}


def report_kills(options: argparse.Namespace) -> None:
    rows = []
    for engine in options.engines:
        kept, cost, kills = [], [], 0
        for _ in range(options.repetitions):
            runs = []
            for every in (0.0, options.every):
                with TemporaryDirectory() as folder:
                    runs.append(call(rate, engine, options.samples, options.epochs, every, folder))
            still, disturbed = runs
            kept.append(disturbed["rate"] / still["rate"])
            kills += disturbed["kills"]
            if disturbed["kills"]:
                cost.append((disturbed["seconds"] - still["seconds"]) / disturbed["kills"])
        large = 1 - median(cost or [0.0]) / FAULT_SECONDS  # all slots wait for the one that trains again
        rows.append([engine, str(kills), spread(kept, ".2f"), spread(cost, ".1f"), f"{large:.3f}"])
    headers = ["engine", "kills", "kept of the samples/s", "seconds a kill", f"{SLOTS} slots, computed"]
    common.print_table(f"A worker killed every {options.every:g} s, {WORKERS} slots", headers, rows)


# -- a link that breaks ------------------------------------------------------------------------------------


def repeatable(engine: str, folder: str, samples: int, epochs: int) -> dict[str, Any]:
    """Fit with a checkpoint each round, from the last one if there is any; return the bits, and rounds' seconds."""
    from compss_train import DistributedTrainer
    from compss_train.callbacks import Checkpoint

    options = {"resume": folder} if any(Path(folder).iterdir()) else {}
    with DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(common.network("MLP", 0), common.SGD, "cross_entropy")
        data = common.load_images(samples).blocked(2 * WORKERS)
        fitted = common.fit(trainer, *data, epochs=epochs, callbacks=[Checkpoint(folder)], **options)
        arrays = [np.asarray(value).tobytes() for _, value in sorted(trainer.get_parameters().items())]
    seconds = [record["seconds"] for record in fitted.history]
    return {"bits": sha256(b"".join(arrays)).hexdigest()[:12], "seconds": seconds}


def fit(network: Network, folder: str, options: argparse.Namespace) -> dict[str, Any] | str:
    """Fit on Ray; return what ``repeatable`` does, or the last line of what the program says."""
    names = ("grpc_client_keepalive_time_ms", "grpc_client_keepalive_timeout_ms")
    settings = json.dumps(dict.fromkeys(names, int(1000 * options.keepalive)))
    address = f"RAY_ADDRESS={network.addresses[0]}:{RAY_PORT}"
    within = [*network.within(0), "timeout", f"{options.patience:g}", "env", address]
    with ray_in(network, *([f"--system-config={settings}"] if options.keepalive else [])):
        try:
            found: dict[str, Any] = call(repeatable, "ray", folder, *options.task, within=within)
            return found
        except RuntimeError as error:
            return str(error).strip().splitlines()[-1]


def row(network: Network, options: argparse.Namespace, after: float, bits: str) -> list[str]:
    """Break a link once, so many seconds after the checkpoint, mend it, and return the cells of the table."""
    with TemporaryDirectory() as folder:

        def break_link() -> None:
            while not Path(folder, BROKEN_ROUND).exists():
                time.sleep(0.05)
            time.sleep(after)
            network.plug(CUT_NODE, "down")
            time.sleep(options.down)
            network.plug(CUT_NODE, "up")

        threading.Thread(target=break_link, daemon=True).start()
        ended, how = fit(network, folder, options), "goes on"
        if isinstance(ended, str):
            how = f"ends: {ended}, and resumes"
            ended = fit(network, folder, options)
    if isinstance(ended, str):
        return [f"{after:g}", f"{how}: {ended}", "-", "-"]
    return [f"{after:g}", how, "yes" if ended["bits"] == bits else "NO", f"{max(ended['seconds'][1:]):.0f}"]


def report_link(options: argparse.Namespace) -> None:
    skip_without_network()
    options.task = (5_000 if options.quick else 20_000), 6  # samples and epochs
    with nodes_of(2) as network, common.threads_of_children(1), TemporaryDirectory() as folder:
        network.limit(options.rate)
        whole = call(repeatable, "local", folder, *options.task)
        rows = [row(network, options, after, whole["bits"]) for after in options.after]
    headers = ["s after a checkpoint", "the fit", "same bits as on the local engine", "longest later round, s"]
    title = f"A link of {options.rate:g} Mbit/s that is down for {options.down:g} s"
    common.print_table(title, headers, rows)


PARTS = {"kills": report_kills, "link": report_link}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=40, samples=60_000, parts=PARTS)
    kills, link = (options_parser.add_argument_group(f"the part {part}").add_argument for part in PARTS)
    kills("--engines", nargs="+", default=["local", "ray"])
    kills("--every", type=float, default=15.0, help="seconds between kills")
    link("--rate", type=float, default=100.0, help="Mbit/s")
    link("--down", type=float, default=30.0, help="seconds without a link")
    link("--after", type=float, nargs="+", default=[0.1, 1.5, 2.5], help="seconds from a checkpoint to the break")
    link("--keepalive", type=float, default=20.0, help="seconds between pings, and for an answer; 0: Ray's own")
    link("--patience", type=float, default=600.0, help="seconds until a fit has taken too long")
    options = common.parsed(options_parser, epochs=4, samples=10_000, every=2.0, after=[0.1])
    print(common.image_source())
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
