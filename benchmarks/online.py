"""What does receiving samples cost training, compared with bare ZeroMQ and a plain loop?"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _common as common
import numpy as np
import torch
import zmq
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations, Solver
from compss_train.buffers import FIFO
from compss_train.cli.solvers import HEADERS
from compss_train.net import Address, sockets
from compss_train.net.messages import pack, unpack
from compss_train.online.events import EventServer
from compss_train.online.receiver import Receiver
from compss_train.online.routing import Routing, StreamKeys
from compss_train.online.stream import Stream

BARE = "bare ZeroMQ"
KEPT = "bare ZeroMQ, in batches"
PLAIN = "plain loop"
GENERATOR = "numpy generator"
SOLVER = "solver in C, 2 ranks"
WITHOUT = "a step that does not ask"
BATCH = 10
KEYS = StreamKeys("a key")
ROUTING = Routing(1, whole=False)


# -- samples that travel


def send_bare(address: Address, size: int, samples: int) -> None:
    """Send the frames of each sample: a header, x and y."""
    context = zmq.Context()
    socket = sockets.client_socket(context, address.url, address.token)
    socket.setsockopt(zmq.SNDHWM, most_on_the_way(size))
    socket.connect(address.url)
    frames = pack({"sample": 0}, (np.zeros(6, np.float32), np.zeros(size, np.float32)))
    for _ in range(samples):
        socket.send_multipart(frames)
    sockets.end(context, 60_000)


def most_on_the_way(size: int) -> int:
    """Return how many messages each socket may hold."""
    return max(2, min(1000, 2**22 // (4 * size)))


def receive_bare(url: str, size: int, samples: int, _: int, *, keeps: bool = False) -> float:
    """Return messages per second through ZeroMQ's sockets, whose frames are not looked at.

    With ``keeps`` they are copied into batches: the least that training needs.
    """
    context = zmq.Context()
    socket = sockets.server_socket(context)
    socket.setsockopt(zmq.RCVHWM, most_on_the_way(size))
    if not url.startswith(sockets.PRIVATE):
        socket.curve_server = 1
        socket.curve_secretkey = sockets.curve_keys(KEYS.token)[1]
    socket.bind(url)
    address = Address(socket.getsockopt_string(zmq.LAST_ENDPOINT), KEYS.token)
    sender = common.spawned(send_bare, address, size, samples)
    receive_batch = receive_and_keep if keeps else receive_and_drop
    receive_batch(socket, size)
    rate = batches_per_second(lambda: receive_batch(socket, size), samples // BATCH - 1) * BATCH
    sender.join()
    sockets.end(context, 0)
    return rate


def batches_per_second(receive: Callable[[], object], batches: int) -> float:
    """Return how often per second a batch is received; none is kept, as in training."""
    began = time.perf_counter()
    for _ in range(batches):
        receive()
    return batches / (time.perf_counter() - began)


def receive_and_drop(socket: sockets.Socket, size: int) -> None:
    """Receive the messages of a batch, which are not looked at."""
    for _ in range(BATCH):
        socket.recv_multipart(copy=False)


def receive_and_keep(socket: sockets.Socket, size: int) -> Any:
    """Return a batch: each message is read, and its x and y are copied once."""
    x = np.empty((BATCH, 6), np.float32)
    y = np.empty((BATCH, size), np.float32)
    for row in range(BATCH):
        _, *frames = socket.recv_multipart(copy=False)
        _, arrays = unpack(frames)
        for column, array in zip((x, y), arrays, strict=True):
            column[row] = np.frombuffer(array.pieces[0], np.float32)
    return x, y


def send_ours(address: Any, size: int, samples: int) -> None:
    x = np.zeros(6, np.float32)
    y = np.zeros(size, np.float32)
    with Stream(address, {"role": "simulation"}, print) as stream:
        stream.open()
        for _ in range(samples):
            stream.send((x, y), None)
        stream.finish()


def receive_ours(address: str | None, size: int, samples: int, _: int) -> float:
    """Return samples per second through a buffer, from which another thread gets batches.

    The samples come through a socket file, or encrypted over TCP.
    """
    buffer = FIFO(1024)
    with (
        EventServer("127.0.0.1") as server,
        Receiver(buffer, address, keys=KEYS, worker=0, routing=ROUTING) as receiver,
    ):
        sender = common.spawned(send_ours, server.address, size, samples)
        received = server.next(60)
        if received is None:
            raise TimeoutError("the sender has not started")
        reply = {"accepted": True, "stream": 0, "workers": [receiver.url]}
        received[0].send({**reply, "key": KEYS.token, "stream_key": KEYS.of(0)})
        buffer.get_batch(BATCH)
        rate = batches_per_second(lambda: buffer.get_batch(BATCH), samples // BATCH - 1) * BATCH
        sender.join()
    return rate


def report_transport(options: argparse.Namespace) -> None:
    for size, many in ((16, 40_000), (4096, 10_000), (250_000, 500)):
        samples = many // 5 if options.quick else many
        megabytes = (size + 6) * 4 / 1e6
        for path, ours, bare in (
            ("a socket file", None, f"{sockets.PRIVATE}@bare-{os.getpid()}"),
            ("encrypted TCP", sockets.LOOPBACK, sockets.LOOPBACK),
        ):
            contestants: dict[str, Callable[[int], float]] = {
                BARE: partial(receive_bare, bare, size, samples),
                KEPT: partial(receive_bare, bare, size, samples, keeps=True),
                "stream and FIFO": partial(receive_ours, ours, size, samples),
            }
            rates = common.in_turn(contestants, options.repetitions)
            title = (
                f"Samples of 6 + {size:,} float32, {1000 * megabytes:.1f} kB each, through {path}"
            )
            common.print_rates(title, rates, BARE, goal="0.7")


# -- training


def network(size: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, size)
    )


def simulate(size: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        yield rng.random(6, np.float32), rng.random(size, np.float32)


def plain(size: int, batches: int, _: int) -> float:
    """Return batches per second of a loop over samples in memory."""
    net = network(size)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.rand(1024, 6)
    y = torch.rand(1024, size)
    began = time.perf_counter()
    for _ in range(batches):
        rows = torch.randint(1024, (BATCH,))
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return batches / (time.perf_counter() - began)


def fit(trainer: DistributedTrainer, size: int, batches: int, record_every: float) -> None:
    """Train while one simulation sends as fast as it can."""
    trainer.fit_online(
        Simulations(simulate, itertools.repeat(size)),
        buffer=BufferSpec("Reservoir", 1024, 100),
        batch_size=BATCH,
        merge=Merge(every=100),
        max_batches=batches,
        record_every=record_every,
        progress=False,
    )


def online(trainer: DistributedTrainer, size: int, batches: int, _: int) -> float:
    trainer.build(network(size), {"optimizer": "adam", "lr": 1e-3}, "mse")
    fit(trainer, size, batches, record_every=0.5)
    # The first one includes the start.
    records = list(trainer.history)[1:-1] or list(trainer.history)
    seconds = sum(record["seconds"] for record in records)
    return float(sum(record["batches"] for record in records) / seconds)


def report_training(options: argparse.Namespace) -> None:
    size = 4096
    batches = 300 if options.quick else 1500
    torch.set_num_threads(1)
    with DistributedTrainer(1, engine="local", threads=1, seed=0) as trainer:
        online(trainer, size, 20, 0)
        contestants: dict[str, Callable[[int], float]] = {
            PLAIN: partial(plain, size, batches),
            "fit_online, Reservoir": partial(online, trainer, size, batches),
        }
        rates = common.in_turn(contestants, options.repetitions)
    title = (
        f"Batches of {BATCH}, MLP 6-256-256-{size:,}, one thread, while one simulation runs "
        "at full speed"
    )
    common.print_rates(title, rates, PLAIN, unit="batches/s")


# -- which sample is which


def numbered_step(model: nn.Module, batch: Any, context: Any, *, asks: bool) -> torch.Tensor:
    """A training step that asks for the numbers of its samples, or does not."""
    x, y = batch
    if asks and (len(context.simulations) != len(x) or len(context.steps) != len(x)):
        raise RuntimeError(f"{len(context.simulations)} numbers of {len(x)} samples")
    return nn.functional.mse_loss(model(x), y)


def stepped(trainer: DistributedTrainer, size: int, batches: int, _: int, *, asks: bool) -> float:
    """Return samples per second of the last three quarters of a fit."""
    step = partial(numbered_step, asks=asks)
    trainer.build(network(size), {"optimizer": "adam", "lr": 1e-3}, training_step=step)
    fit(trainer, size, batches, record_every=0.2)
    records = list(trainer.history)[len(trainer.history) // 4 : -1] or list(trainer.history)
    seconds = sum(record["seconds"] for record in records)
    return float(sum(record["samples"] for record in records) / seconds)


def report_numbers(options: argparse.Namespace) -> None:
    size = 16
    batches = 300 if options.quick else 3000
    torch.set_num_threads(1)
    with DistributedTrainer(1, engine="local", threads=1, seed=0) as trainer:
        stepped(trainer, size, 20, 0, asks=True)
        contestants: dict[str, Callable[[int], float]] = {
            WITHOUT: partial(stepped, trainer, size, batches, asks=False),
            "simulations and steps": partial(stepped, trainer, size, batches, asks=True),
        }
        rates = common.in_turn(contestants, options.repetitions)
    title = f"A training step that asks for numbers of its samples, MLP 6-256-256-{size}"
    common.print_rates(title, rates, WITHOUT)


# -- solvers


def ready(value: tuple[int, int]) -> Iterator[Any]:
    """Yield ready arrays."""
    samples, size = value
    u = np.arange(size, dtype=np.float64)
    for step in range(samples):
        yield step, np.array([step], np.float32), u


def as_sent(value: tuple[int, int], step: int, fields: Any) -> Any:
    return np.array([step], np.float32), fields["u"]


def first_number(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that costs nothing."""
    return (output - target[:, :1].float()).square().mean()


def received(trainer: DistributedTrainer, simulate: Any, samples: int, size: int, _: int) -> float:
    """Return samples per second that a worker receives and trains on.

    They are those from the first report to the last one.
    """
    trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 0.0}, first_number)
    trainer.fit_online(
        Simulations(simulate, [(samples, size)]),
        buffer=BufferSpec("FIFO", 1024),
        batch_size=100,
        merge=Merge(every=100),
        record_every=0.1,
        checkpoint_every=None,
        progress=False,
    )
    records = [record for record in trainer.history if record["received"]]
    first = records[0]
    last = next(record for record in records if record["received"] == samples)
    return float((samples - first["received"]) / (last["ended"] - first["ended"]))


def report_solvers(options: argparse.Namespace) -> None:
    """A solver in C with two ranks against a generator, both with arrays that are ready."""
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        print("no solver: mpicc and mpirun are missing (Debian: libopenmpi-dev, openmpi-bin)")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        DistributedTrainer(1, engine="local", threads=1) as trainer,
    ):
        program = f"{folder}/ready"
        source = str(Path(__file__).with_name("ready_solver.c"))
        subprocess.run(["mpicc", "-O2", f"-I{HEADERS}", "-o", program, source], check=True)
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = [
            *("mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"),
            *(program, "{0}", "{1}"),
        ]
        simulations = {GENERATOR: ready, SOLVER: Solver(command, as_sent, environment=as_root)}
        for size, many in ((16, 100_000), (4096, 40_000)):
            samples = many // 10 if options.quick else many
            contestants: dict[str, Callable[[int], float]] = {
                label: partial(received, trainer, simulate, samples, size)
                for label, simulate in simulations.items()
            }
            for contestant in contestants.values():
                contestant(0)
            rates = common.in_turn(contestants, options.repetitions)
            title = f"Samples of {size:,} float64 that are ready, one worker"
            common.print_rates(title, rates, GENERATOR)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "transport": report_transport,
    "training": report_training,
    "numbers": report_numbers,
    "solvers": report_solvers,
}


def main() -> None:
    options = common.parsed(common.parser(__doc__, repetitions=5, parts=PARTS))
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
