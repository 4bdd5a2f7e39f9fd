"""How fast is a parameter server? Pushes and pulls, against bare ZeroMQ with the same bytes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import _common as common
import numpy as np
import zmq
from numpy.typing import NDArray

from compss_train.parameter_server import LocalParameterServer, ParameterServer, connect, serve

BARE = "bare ZeroMQ, TCP"
SERVED = "served, socket file"
ENCRYPTED = "served, TCP"
LOCAL = "local"
SMALL = 16
"""Number of elements of a small array."""

Arrays = list[NDArray[np.float32]]


# -- servers, in processes of their own


def bare_server(pipe: Any) -> None:
    """Add pushed arrays to those of their keys, and answer pulls.

    There is neither authentication nor reconnection.
    """
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    arrays: dict[bytes, NDArray[np.float32]] = {}
    while True:
        client, call, *frames = socket.recv_multipart(copy=False)
        key = call.bytes
        if not key:
            break
        if frames:
            pushed = np.frombuffer(frames[0].buffer, np.float32)
            if key in arrays:
                arrays[key] += pushed
            else:
                arrays[key] = pushed.copy()
            socket.send_multipart([client, b""])
        else:
            socket.send_multipart([client, arrays[key].data], copy=False)
    context.destroy(1000)


def parameter_server(address: str | None, pipe: Any) -> None:
    with serve(address) as serving:
        pipe.send((serving.address, serving.token))
        pipe.recv()


@contextmanager
def started(server: Callable[[Any], None]) -> Iterator[Any]:
    """Run a server in a process; yield the first object that it sends."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = common.spawned(server, theirs)
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


@contextmanager
def bare() -> Iterator[zmq.Socket[bytes]]:
    with started(bare_server) as port:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket
        socket.send(b"")
        context.destroy(1000)


@contextmanager
def served(at: str | None = None) -> Iterator[ParameterServer]:
    with (
        started(partial(parameter_server, at)) as (address, token),
        connect(address, token) as client,
    ):
        yield client


# -- pushes and pulls


def move_bare(socket: zmq.Socket[bytes], arrays: Arrays, weights: Arrays) -> None:
    """Push all arrays, wait for the answers, then pull one after the other."""
    keys = [b"%d" % number for number in range(1, len(arrays) + 1)]
    for key, array in zip(keys, arrays, strict=True):
        socket.send_multipart([key, array.data], copy=False)
    for _ in keys:
        socket.recv()
    for key, weight in zip(keys, weights, strict=True):
        socket.send(key)
        np.copyto(weight, np.frombuffer(socket.recv(copy=False).buffer, np.float32))


def move(server: ParameterServer, arrays: Arrays, weights: Arrays) -> None:
    for number, array in enumerate(arrays):
        server.push(f"{len(arrays)}/{number}", [array])
    for number, weight in enumerate(weights):
        server.pull(f"{len(arrays)}/{number}", [weight])


def init(server: ParameterServer, keys: int, size: int) -> None:
    for number in range(keys):
        server.init(f"{keys}/{number}", [np.zeros(size, np.float32)])


def report_large(megabytes: int, keys: int, repetitions: int) -> None:
    arrays = [np.ones(megabytes * 250_000 // keys, np.float32) for _ in range(keys)]
    weights = [np.zeros_like(array) for array in arrays]
    with (
        bare() as socket,
        served() as remote,
        served("tcp://127.0.0.1:*") as tcp,
        LocalParameterServer() as local,
    ):
        contestants: dict[str, Callable[[], None]] = {
            BARE: lambda: move_bare(socket, arrays, weights)
        }
        for label, server in ((SERVED, remote), (ENCRYPTED, tcp), (LOCAL, local)):
            init(server, keys, len(arrays[0]))
            contestants[label] = partial(move, server, arrays, weights)
        runs = {label: partial(_per_second, run) for label, run in contestants.items()}
        rates = common.in_turn(runs, repetitions + 1)
    rates = {label: values[1:] for label, values in rates.items()}  # the first one allocates memory
    title = f"Push and pull of {megabytes} MB as {keys} key(s)"
    common.print_rates(title, rates, BARE, goal=">= 0.5", unit="per s", form=".2f")
    for label, values in rates.items():
        print(f"{label}: {common.spread([1000 / value for value in values], ',.0f')} ms")


def _per_second(run: Callable[[], object], _: int) -> float:
    return 1 / common.seconds_of(run)


def pushes(server: ParameterServer, keys: int, count: int) -> float:
    """Return the executed pushes of small arrays per second."""
    array = np.ones(SMALL, np.float32)
    names = [f"{keys}/{number % keys}" for number in range(count)]

    def push_all() -> None:
        for key in names:
            server.push(key, [array])
        for key in set(names[-10:]):
            server.pull(key)

    return count / common.seconds_of(push_all)


def report_small(few: int, many: int, count: int, repetitions: int) -> None:
    rows = []
    with served() as remote, served("tcp://127.0.0.1:*") as tcp, LocalParameterServer() as local:
        for label, server in ((SERVED, remote), (ENCRYPTED, tcp), (LOCAL, local)):
            for keys in (few, many):
                init(server, keys, SMALL)
                # Warm-up: the client requests the keys' dtypes and shapes.
                pushes(server, keys, count)
                rates = [pushes(server, keys, count) for _ in range(repetitions)]
                rows.append([label, f"{keys:,}", common.spread(rates, ",.0f")])
    title = f"Pushes of {SMALL} float32, {count:,} at a time"
    common.print_table(title, ["contestant", "keys", "pushes/s (>= 10,000)"], rows)


def main() -> None:
    options = common.parsed(common.parser(__doc__, repetitions=9))
    megabytes = 8 if options.quick else 100
    count = 500 if options.quick else 10_000
    for keys in (1, 25):
        report_large(megabytes, keys, options.repetitions)
    report_small(3, count, count, options.repetitions)


if __name__ == "__main__":
    main()
