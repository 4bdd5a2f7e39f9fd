"""What stands in for the clock, threads and network of the system while a simulation runs."""

import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train.engines.simulated import Events, FaultPlan
from compss_train.online import setup, simulation_task, worker_task  # noqa: F401  so that they are patched
from compss_train.parameter_server import connect, serve  # noqa: F401
from tests.simulation.fake_socket import Network, QueueModule, SelectModule, SocketModule
from tests.simulation.fake_zmq import FakeZmq
from tests.simulation.fibers import FakeThreading, FiberEvents

EPOCH = 1_700_000_000.0


@contextmanager
def virtual_time(events: Events) -> Iterator[None]:
    """Have programs read the virtual clock wherever they read the time."""
    clocks = dict.fromkeys(("monotonic", "perf_counter"), events.clock)
    sleep = partial(events.wait, lambda: False) if isinstance(events, FiberEvents) else time.sleep
    with patch.multiple(time, **clocks, time=lambda: EPOCH + events.clock(), sleep=sleep):
        yield


@contextmanager
def simulated_modules(events: FiberEvents, plan: FaultPlan) -> Iterator[None]:
    """Have the package use simulated threads and a simulated network."""
    network, sockets = FakeZmq(events, plan), Network(events, plan)
    fakes: list[tuple[Any, Any]] = [
        (socket, SocketModule(sockets)),
        (select, SelectModule(events)),
        (queue, QueueModule(events)),
        (threading, FakeThreading(events)),
        (zmq, network),
        (recv_monitor_message, network.recv_monitor_message),
    ]
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("compss_train.")]:
            for attribute, value in list(vars(module).items()):
                fake = next((fake for real, fake in fakes if value is real), None)
                if fake is not None:
                    stack.enter_context(patch.object(module, attribute, fake))
        yield
