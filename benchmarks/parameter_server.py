"""Pushes and pulls of a served parameter server, compared with bare ZeroMQ that moves and adds the same bytes."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq
from _common import parser, print_table, ratios, spread
from numpy.typing import NDArray

from compss_train.parameter_server import LocalParameterServer, ParameterServer, connect, serve

BARE, SERVED, ENCRYPTED, LOCAL = "bare ZeroMQ, TCP", "served, socket file", "served, TCP", "local"
SMALL = 16
"""Number of elements of a small array."""

Arrays = list[NDArray[np.float32]]


def bare_server(pipe: Any) -> None:
    """Add pushed arrays to those of their keys and answer pulls, without authentication or reconnection."""
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
            arrays[key] = np.add(arrays[key], pushed, out=arrays[key]) if key in arrays else pushed.copy()
            socket.send_multipart([client, b""])
        else:
            socket.send_multipart([client, arrays[key]], copy=False)
    context.destroy(1000)


def parameter_server(pipe: Any) -> None:
    serve_at(None, pipe)


def encrypted_server(pipe: Any) -> None:
    serve_at("tcp://127.0.0.1:*", pipe)


def serve_at(address: str | None, pipe: Any) -> None:
    with serve(address) as serving:
        pipe.send((serving.address, serving.token))
        pipe.recv()


@contextmanager
def started(server: Callable[[Any], None]) -> Iterator[tuple[Any, Any]]:
    """Run a server in a process; yield the first object that it sends, and the pipe to it."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=server, args=(theirs,))
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        ours.send(None)
        process.join()


@contextmanager
def bare() -> Iterator[zmq.Socket[bytes]]:
    with started(bare_server) as (port, _):
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket
        socket.send(b"")
        context.destroy(1000)


@contextmanager
def served(server: Callable[[Any], None] = parameter_server) -> Iterator[ParameterServer]:
    with started(server) as ((address, token), _), connect(address, token) as client:
        yield client


def move_bare(socket: zmq.Socket[bytes], arrays: Arrays, weights: Arrays) -> None:
    """Push all arrays, wait for the answers, then pull one after the other."""
    keys = [b"%d" % number for number in range(1, len(arrays) + 1)]
    for key, array in zip(keys, arrays, strict=True):
        socket.send_multipart([key, array], copy=False)
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


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def operations(server: ParameterServer, keys: int, count: int) -> float:
    """Return the executed pushes of small arrays per second."""
    arrays = [np.ones(SMALL, np.float32)] * keys
    pushes = [(f"{keys}/{number % keys}", arrays[:1]) for number in range(count)]

    def push_all() -> None:
        for key, array in pushes:
            server.push(key, array)
        for key in {key for key, _ in pushes[-10:]}:
            server.pull(key)

    return count / seconds(push_all)


def init(server: ParameterServer, keys: int, size: int) -> None:
    for number in range(keys):
        server.init(f"{keys}/{number}", [np.zeros(size, np.float32)])


def run_large(megabytes: int, keys: int, repetitions: int) -> dict[str, list[float]]:
    arrays = [np.ones(megabytes * 250_000 // keys, np.float32) for _ in range(keys)]
    weights = [np.zeros_like(array) for array in arrays]
    with bare() as socket, served() as remote, served(encrypted_server) as tcp, LocalParameterServer() as local:
        for server in (remote, tcp, local):
            init(server, keys, len(arrays[0]))
        contestants: dict[str, Callable[[], None]] = {
            BARE: lambda: move_bare(socket, arrays, weights),
            SERVED: lambda: move(remote, arrays, weights),
            ENCRYPTED: lambda: move(tcp, arrays, weights),
            LOCAL: lambda: move(local, arrays, weights),
        }
        for contestant in contestants.values():
            contestant()  # warm-up: allocates memory
        results: dict[str, list[float]] = {label: [] for label in contestants}
        for _ in range(repetitions):
            for label, contestant in contestants.items():
                results[label].append(seconds(contestant))
        return results


def report_large(megabytes: int, keys: int, repetitions: int) -> None:
    took = run_large(megabytes, keys, repetitions)
    rows = [
        [label, spread([1000 * value for value in values], ",.0f"), spread(ratios(took[BARE], values))]
        for label, values in took.items()
    ]
    print_table(
        f"Push and pull of {megabytes} MB as {keys} key(s)", ["contestant", "ms", "speed of bare (>= 0.5)"], rows
    )


def report_small(few: int, many: int, count: int, repetitions: int) -> None:
    rows = []
    with served() as remote, served(encrypted_server) as tcp, LocalParameterServer() as local:
        for label, server in ((SERVED, remote), (ENCRYPTED, tcp), (LOCAL, local)):
            for keys in (few, many):
                init(server, keys, SMALL)
                operations(server, keys, count)  # warm-up: the client requests the keys' dtypes and shapes
            for keys in (few, many):
                rates = [operations(server, keys, count) for _ in range(repetitions)]
                rows.append([label, f"{keys:,}", spread(rates, ",.0f")])
    print_table(
        f"Pushes of {SMALL} float32, {count:,} at a time", ["contestant", "keys", "pushes/s (>= 10,000)"], rows
    )


def main() -> None:
    options = parser(__doc__, repetitions=9, epochs=0).parse_args()
    megabytes, count = (100, 10_000) if not options.quick else (8, 500)
    repetitions = options.repetitions if not options.quick else 1
    for keys in (1, 25):
        report_large(megabytes, keys, repetitions)
        print(f"{keys} key(s) done", file=sys.stderr)
    report_small(3, count, count, repetitions)


if __name__ == "__main__":
    main()
