"""What stands in for the clock, threads and network of the system while a simulation runs."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train.online import fitting, simulation_task, worker_task  # noqa: F401  # so that they are patched
from compss_train.parameter_server import connect, serve  # noqa: F401
from tests.simulation.engine import Events, FaultPlan
from tests.simulation.fake_zmq import FakeZmq
from tests.simulation.fibers import FakeThreading, FiberEvents

EPOCH = 1_700_000_000.0
"""The time of the day at which simulations start, and that tasks read."""

end_process = simulation_task.end_process


@contextmanager
def virtual_time(events: Events) -> Iterator[None]:
    """Have programs read the virtual clock wherever they read the time."""
    clocks = dict.fromkeys(("monotonic", "perf_counter"), events.clock)
    sleep = partial(events.wait, lambda: False) if isinstance(events, FiberEvents) else time.sleep
    with patch.multiple(
        time, **clocks, time=lambda: EPOCH + events.clock() + events.wall, sleep=sleep
    ):
        yield


@contextmanager
def simulated_modules(events: FiberEvents, plan: FaultPlan) -> Iterator[None]:
    """Have the package use simulated threads and a simulated network."""
    network = FakeZmq(events, plan)
    replaced: list[tuple[Any, Any]] = [
        (threading, FakeThreading(events)),
        (zmq, network),
        (recv_monitor_message, network.recv_monitor_message),
    ]
    fakes = {id(real): fake for real, fake in replaced}
    places = _uses(tuple(fakes), len(sys.modules))
    before = [(module, name, getattr(module, name)) for module, name in places]
    try:
        for module, name, real in before:
            setattr(module, name, fakes[id(real)])
        simulation_task.end_process = events.end_process
        yield
    finally:
        for module, name, real in before:
            setattr(module, name, real)
        simulation_task.end_process = end_process


@cache
def _uses(replaced: tuple[int, ...], loaded: int) -> list[tuple[ModuleType, str]]:
    """Return the modules of the package, with each name by which they use one of these objects."""
    own = [module for name, module in sys.modules.items() if name.startswith("compss_train.")]
    return [
        (module, name)
        for module in own
        for name, value in vars(module).items()
        if id(value) in replaced
    ]
