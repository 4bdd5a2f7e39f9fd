"""Tasks in processes of their own, whose death takes nothing else along.

An engine that replaces processes runs them as they are. Under COMPSs, which does not, a task has a child process
that does its work, and gets another one where that dies.
"""

from __future__ import annotations

from functools import cache
from multiprocessing.util import Finalize
from typing import Any

import torch

from compss_train.engines import Engine, LocalEngine, Ref, Resources
from compss_train.online.simulation import simulate_and_send
from compss_train.online.training import train_online


def submit_training(engine: Engine, *args: Any, resources: Resources) -> Ref:
    """Submit a worker."""
    task = train_online if engine.replaces_processes else train_online_in_child
    ref: Ref = engine.submit(task, *args, resources=resources)
    return ref


def submit_simulation(engine: Engine, *args: Any) -> Ref:
    """Submit a simulation."""
    task = simulate_and_send if engine.replaces_processes else simulate_in_child
    ref: Ref = engine.submit(task, *args)
    return ref


def train_online_in_child(*args: Any) -> Any:
    """Be a worker in a new process, which sees the devices that this task has."""
    threads = torch.get_num_threads()
    with LocalEngine(1, threads) as engine:
        return engine.fetch([engine.submit(train_online, *args, resources=Resources(cpus=threads))])[0]


def simulate_in_child(*args: Any) -> None:
    """Run a simulation in a process that is kept for the next one."""
    engine = _kept()
    ran = engine.submit(simulate_and_send, *args)
    engine.fetch([ran])
    engine.delete([ran])


@cache
def _kept() -> LocalEngine:
    engine = LocalEngine(1)
    # COMPSs's worker processes are children of multiprocessing, which at their end wait for children of their own.
    Finalize(None, engine.shutdown, kwargs={"kill": True}, exitpriority=0)
    return engine
