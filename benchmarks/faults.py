"""What do faults cost? Killed workers, a link that breaks and is mended, studies that are killed.

The part ``kills`` kills a worker process again and again, on each engine. In ``link``, the link of
two nodes of a network breaks in the middle of a fit on Ray: does the fit go on, and with the same
bits? One that ends with an error, or takes too long, is started again in a new cluster and
continues from its checkpoint. Needs root.

In ``studies`` all processes of a study are killed at random, five times, for each kind of buffer:
what is its error to that of undisturbed seeds, and what ran again? ``saves``: how long do workers
with large buffers wait for a save?
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import _common as common
import numpy as np
import torch
from _applications import call
from _common import WORKERS, spread
from _nodes import RAY_PORT, Network, nodes_of, ray_in, skip_without_network
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints, read_latest_checkpoint

KINDS = ("FIFO", "FIRO", "Reservoir", "BatchReservoir", "SimPairedReservoir")
"""The buffers of studies."""
SLOTS = 32
"""Slots of a larger machine, which is computed: torchft's own test had so many replicas."""
FAULT_SECONDS = 1800 / 62
"""Seconds between faults there: that test had 62 in half an hour."""
CUT_NODE = 1
"""The node whose link breaks; the program runs in node 0."""
BROKEN_ROUND = "round-000003"
"""The checkpoint after which the link breaks."""


# -- workers that are killed


def rate(engine: str, samples: int, epochs: int, every: float, folder: str) -> dict[str, float]:
    """Return the samples/s of a fit, and how many processes were killed meanwhile.

    One is killed every so many seconds, none if ``every`` is 0.
    """
    images = common.load_images(samples)
    stamp = common.Stamp(folder)
    over = threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        while every and not over.wait(every):
            processes = stamp.processes()
            if processes:
                os.kill(processes[kills % len(processes)], signal.SIGKILL)
                kills += 1

    with common.warm_trainer(common.network("MLP", 0), engine=engine, transform=stamp) as trainer:
        threading.Thread(target=kill, daemon=True).start()
        fitted = common.fit(trainer, images.x, images.y, epochs=epochs)
        over.set()
    return {"rate": fitted.rate, "kills": kills, "seconds": fitted.seconds}


def report_kills(options: argparse.Namespace) -> None:
    rows = []
    for engine in options.engines:
        kept = []
        cost = []
        kills = 0
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
        # All slots of the larger machine wait for the one that trains again.
        computed = 1 - median(cost or [0.0]) / FAULT_SECONDS
        cells = [engine, str(kills), spread(kept, ".2f"), spread(cost, ".1f"), f"{computed:.3f}"]
        rows.append(cells)
    headers = [
        *("engine", "kills", "kept of the samples/s", "seconds a kill"),
        f"{SLOTS} slots, computed",
    ]
    common.print_table(f"A worker killed every {options.every:g} s, {WORKERS} slots", headers, rows)


# -- a link that breaks


def repeatable(engine: str, folder: str, samples: int, epochs: int) -> dict[str, Any]:
    """Fit with a checkpoint each round, from the last one if there is any.

    Returns the bits of the parameters, and the seconds of the rounds.
    """
    options = {"resume": folder} if any(Path(folder).iterdir()) else {}
    with DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(common.network("MLP", 0), common.SGD, "cross_entropy")
        x, y = common.load_images(samples).blocked(2 * WORKERS)
        fitted = common.fit(trainer, x, y, epochs=epochs, callbacks=[Checkpoint(folder)], **options)
        parameters = trainer.get_parameters()
    content = b"".join(np.asarray(parameters[name]).tobytes() for name in sorted(parameters))
    seconds = [record["seconds"] for record in fitted.history]
    return {"bits": sha256(content).hexdigest()[:12], "seconds": seconds}


def fit(network: Network, folder: str, options: argparse.Namespace) -> dict[str, Any] | str:
    """Fit on Ray; return what ``repeatable`` does, or the last line of what the program says."""
    names = ("grpc_client_keepalive_time_ms", "grpc_client_keepalive_timeout_ms")
    settings = json.dumps(dict.fromkeys(names, int(1000 * options.keepalive)))
    address = f"RAY_ADDRESS={network.addresses[0]}:{RAY_PORT}"
    within = [*network.within(0), "timeout", f"{options.patience:g}", "env", address]
    with ray_in(network, *([f"--system-config={settings}"] if options.keepalive else [])):
        try:
            result: dict[str, Any] = call(repeatable, "ray", folder, *options.task, within=within)
            return result
        except RuntimeError as error:
            return str(error).strip().splitlines()[-1]


def row(network: Network, options: argparse.Namespace, after: float, bits: str) -> list[str]:
    """Break a link once, so many seconds after the checkpoint, and mend it.

    Returns a row of the table.
    """
    with TemporaryDirectory() as folder:

        def break_link() -> None:
            while not Path(folder, BROKEN_ROUND).exists():
                time.sleep(0.05)
            time.sleep(after)
            network.plug(CUT_NODE, "down")
            time.sleep(options.down)
            network.plug(CUT_NODE, "up")

        threading.Thread(target=break_link, daemon=True).start()
        result = fit(network, folder, options)
        outcome = "goes on"
        if isinstance(result, str):
            outcome = f"ends: {result}, and resumes"
            result = fit(network, folder, options)
    if isinstance(result, str):
        return [f"{after:g}", f"{outcome}: {result}", "-", "-"]
    same_bits = "yes" if result["bits"] == bits else "NO"
    return [f"{after:g}", outcome, same_bits, f"{max(result['seconds'][1:]):.0f}"]


def report_link(options: argparse.Namespace) -> None:
    skip_without_network()
    samples = 5_000 if options.quick else 20_000
    options.task = (samples, 6)  # epochs
    with nodes_of(2) as network, common.threads_of_children(1), TemporaryDirectory() as folder:
        network.limit(options.rate)
        whole = call(repeatable, "local", folder, *options.task)
        rows = [row(network, options, after, whole["bits"]) for after in options.after]
    headers = [
        *("s after a checkpoint", "the fit", "same bits as on the local engine"),
        "longest later round, s",
    ]
    title = f"A link of {options.rate:g} Mbit/s that is down for {options.down:g} s"
    common.print_table(title, headers, rows)


# -- studies that are killed


def simulate(folder: Path, frequency: float) -> Iterator[Any]:
    with (folder / "begun").open("a") as file:
        file.write(f"{frequency}\n")
    for t in np.linspace(0, 1, 50, dtype=np.float32):
        time.sleep(0.002)
        yield np.array([frequency, t], np.float32), np.array([np.sin(frequency * t)], np.float32)


def life(folder: str, kind: str, seed: int) -> None:
    """Run a study, or go on with it, until its end; ``folder/error`` then has its error."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    with DistributedTrainer(2, engine="local", threads=1, seed=seed) as trainer:
        trainer.build(net, {"optimizer": "adam", "lr": 0.01}, "mse")
        pairs = {"sweep_size": 80, "nb_time_steps": 50} if kind == "SimPairedReservoir" else {}
        trainer.fit_online(
            Simulations(
                partial(stepped if pairs else simulate, Path(folder)),
                np.random.default_rng(1).uniform(1, 5, 80).tolist(),
                count=2,
                pairing=later if pairs else None,
            ),
            buffer=BufferSpec(kind, 400, **pairs),
            batch_size=10,
            merge=Merge(every=10),
            checkpoint_every=0.5,
            callbacks=[Checkpoint(Path(folder, "saves"))],
            resume=True,
            progress=False,
        )
        grid = np.meshgrid(np.linspace(1, 5, 40), np.linspace(0, 1, 40))
        x = np.stack(grid, -1).reshape(-1, 2).astype(np.float32)
        y = np.sin(x[:, :1] * x[:, 1:])
        Path(folder, "error").write_text(str(trainer.evaluate(x, y)["loss"]))


def stepped(folder: Path, frequency: float) -> Iterator[Any]:
    for step, (x, y) in enumerate(simulate(folder, frequency)):
        yield step, x, y


def later(earlier: Any, latter: Any) -> Any:
    return latter.data


def start(folder: str, kind: str, seed: int) -> subprocess.Popen[bytes]:
    code = f"import faults; faults.life({folder!r}, {kind!r}, {seed})"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, start_new_session=True
    )


def kill_session(leader: int) -> None:
    """Kill all processes of a session at once."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(path.parent.name), signal.SIGKILL)


def study(kind: str, seed: int, kills: int) -> tuple[float, int]:
    """Return the error of a study, and how many complete simulations ran again.

    They are those that its saves held as complete.
    """
    draw = random.Random(f"{kind} {seed}")
    again = 0
    with TemporaryDirectory() as folder:
        saves = Path(folder, "saves")
        begun = Path(folder, "begun")
        for _ in range(kills):
            program = start(folder, kind, seed)
            known = set(list_checkpoints(saves))
            while program.poll() is None and not set(list_checkpoints(saves)) - known:
                time.sleep(0.01)
            time.sleep(draw.random())
            kill_session(program.pid)
            program.wait()
            if list_checkpoints(saves):
                simulations = read_latest_checkpoint(saves)[1]["study"]["simulations"]
                complete = np.flatnonzero(simulations["samples"] >= 0)
                inputs = np.random.default_rng(1).uniform(1, 5, 80)[complete]
                before = Counter(begun.read_text().split())
                counts = {str(value): before[str(value)] for value in inputs.tolist()}
        program = start(folder, kind, seed)
        if program.wait(600):
            raise RuntimeError(f"a study through a {kind} failed after {kills} kills")
        if kills:
            after = Counter(begun.read_text().split())
            again = sum(after[value] > count for value, count in counts.items())
        return float(Path(folder, "error").read_text()), again


def report_studies(options: argparse.Namespace) -> None:
    rows = []
    for kind in KINDS:
        undisturbed = [study(kind, seed, 0)[0] for seed in range(options.repetitions)]
        killed = [study(kind, seed, 5) for seed in range(2)]
        errors = [error for error, _ in killed]
        again = sum(number for _, number in killed)
        rows.append([kind, spread(undisturbed, ".2e"), spread(errors, ".2e"), str(again)])
    headers = ["buffer", "error, undisturbed", "killed 5 times", "complete ones that ran again"]
    common.print_table("Studies of 80 simulations whose processes are all killed", headers, rows)


def report_saves(options: argparse.Namespace) -> None:
    """Workers with 100 MB each; what it takes to write as much is measured beside it."""
    rows = 2500

    def large(number: int) -> Iterator[Any]:
        rng = np.random.default_rng(number)
        for _ in range(2000):
            yield rng.random(6, np.float32), rng.random(10_000, np.float32)

    with (
        TemporaryDirectory() as folder,
        DistributedTrainer(2, engine="local", threads=1, seed=0) as trainer,
    ):
        trainer.build(nn.Linear(6, 10_000), {"optimizer": "sgd", "lr": 1e-3}, "mse")
        trainer.fit_online(
            Simulations(large, range(60), count=1),
            buffer=BufferSpec("Reservoir", rows, threshold=rows - 100),
            batch_size=10,
            merge=Merge(every=10),
            checkpoint_every=2,
            callbacks=[Checkpoint(folder)],
            max_time=90,
            progress=False,
        )
        full = [record for record in trainer.history if record["buffer"] > 1.9 * rows]
        seconds = [record["save_seconds"] for record in full if "save_seconds" in record]
        size = sum(path.stat().st_size for path in Path(folder).rglob("buffer-*")) / 1e6
        writing = common.seconds_of(partial(Path(folder, "bytes").write_bytes, bytes(200_000_000)))
    print(
        f"saves of {size:.0f} MB on disk: workers waited {spread(seconds)} s; writing 200 MB "
        f"takes {writing:.2f} s"
    )


PARTS = {
    "kills": report_kills,
    "link": report_link,
    "studies": report_studies,
    "saves": report_saves,
}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=40, samples=60_000, parts=PARTS)
    kills = options_parser.add_argument_group("the part kills").add_argument
    link = options_parser.add_argument_group("the part link").add_argument
    kills("--engines", nargs="+", default=["local", "ray"])
    kills("--every", type=float, default=15.0, help="seconds between kills")
    link("--rate", type=float, default=100.0, help="Mbit/s")
    link("--down", type=float, default=30.0, help="seconds without a link")
    link(
        "--after",
        type=float,
        nargs="+",
        default=[0.1, 1.5, 2.5],
        help="seconds from a checkpoint to the break",
    )
    link(
        "--keepalive",
        type=float,
        default=20.0,
        help="seconds between pings, and for an answer; 0: Ray's own",
    )
    link("--patience", type=float, default=600.0, help="seconds until a fit has taken too long")
    options = common.parsed(options_parser, epochs=4, samples=10_000, every=2.0, after=[0.1])
    print(common.image_source())
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
