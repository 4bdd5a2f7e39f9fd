"""Servers under messages that nobody should send: afterwards they serve as before, and no thread
has died.
"""

import logging
import queue
import threading
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BufferSpec, Simulations
from compss_train.callbacks import Callback
from compss_train.engines import Resources, Traits
from compss_train.exceptions import SimulationError, TrainingEndedError, WorkerLostError
from compss_train.model.value_encoding import encode_value
from compss_train.net import Address
from compss_train.net.sockets import LOOPBACK
from compss_train.online.ending import Ending
from compss_train.online.event_loop import EventLoop
from compss_train.online.events import EventServer
from compss_train.online.external_senders import ExternalSenders
from compss_train.online.inputs import Inputs
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import OnlineOptions, online_merge
from compss_train.online.reports import Reports
from compss_train.online.sources import Sources
from compss_train.online.stream_router import StreamRouter
from compss_train.online.task_runs import TaskRuns
from compss_train.online.workers import Workers
from compss_train.parameter_server import connect, serve
from compss_train.training.stopping import Stopping
from compss_train.training.training_state import TrainingState
from tests.buffers.kinds import Thread, make
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.fuzzing import Fuzzer, FuzzingClient
from tests.net.plain_clients import HERE, KEYS, TOKEN, no_threads_left
from tests.online.fits import build_trainer, online
from tests.online.sample_streams import send_stream
from tests.online.simulations import COUNTING_SGD, free_port, sum_loss
from tests.online.stub_fits import StubWorker

pytestmark = pytest.mark.parametrize(
    ("seed", "messages"),
    [(1, 400), pytest.param(2, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)

PUSH = {"call": "push", "key": "w", "priority": 0, "number": 0, "count": 0}
X = np.ones(3, np.float32)


@dataclass
class Door:
    """Where a server listens, and valid messages to begin with: greetings, and what follows
    them.
    """

    url: str
    token: str
    greetings: list[dict[str, Any]]
    then: list[tuple[dict[str, Any], list[Any]]]


@dataclass
class Target:
    """A server, and a check that it still serves; ``threads`` have these names."""

    doors: list[Door]
    check: Any
    threads: set[str] = field(default_factory=lambda: {"connections"})


def attack(target, seed, messages):
    """Send so many messages over connections of a few each; return how many."""
    fuzzer = Fuzzer(seed)
    draw = fuzzer.random
    alive = [each for each in threading.enumerate() if each.name in target.threads]
    assert {each.name for each in alive} == target.threads
    while fuzzer.messages < messages:
        door = draw.choice(target.doors)
        with FuzzingClient(door.url, door.token) as client:
            proof = client.proof if draw.random() < 0.9 else {}
            going = client.send(
                fuzzer.frames(draw.choice(door.greetings) | proof, changed=draw.random() < 0.3)
            )
            for number in range(draw.choice([0, 1, 2, 4, 8])):
                header, arrays = draw.choice(door.then)
                counted = {
                    name: number for name in ("number", "count", "sample", "step") if name in header
                }
                frames = fuzzer.frames({**header, **counted}, arrays, changed=draw.random() < 0.8)
                going = going and client.send(frames)
        if fuzzer.messages % 20 == 0:
            served(target)
    served(target)
    assert all(each.is_alive() for each in alive)
    return fuzzer.messages


def served(target):
    serving = Thread(target.check)
    serving.join(LIMIT)
    assert not serving.is_alive(), f"nobody was served within {LIMIT} s"
    serving.result()


@pytest.mark.parametrize("address", [None, LOOPBACK], ids=["socket file", "TCP"])
def test_a_parameter_server(address, seed, messages, caplog):
    with serve(address) as serving, connect(serving.address, serving.token) as client:
        client.init("w", [np.zeros(2)])

        def check():
            with connect(serving.address, serving.token, timeout=LIMIT) as client:
                client.pull("w")

        greetings = [
            {"client": name, "generation": 0, "timeout": 5.0} for name in ("unnamed a", ("named b"))
        ]
        then = [(PUSH, [np.ones(2)]), (PUSH | {"call": "pull"}, []), (PUSH | {"call": "hello"}, [])]
        then += [
            (PUSH | {"call": "init", "key": key, "optimized": 0}, [np.ones(2)])
            for key in ("v", "w")
        ]
        door = Door(serving.address, serving.token, greetings, [*then, ({"call": "goodbye"}, [])])
        attack(Target([door], check, {"parameter-server", "connections"}), seed, messages)
    assert not [each for each in caplog.records if each.levelno >= logging.CRITICAL]


@pytest.mark.parametrize("address", [None, LOOPBACK], ids=["socket file", "TCP"])
@pytest.mark.parametrize("paired", [False, True])
def test_a_worker_that_receives(address, paired, seed, messages):
    buffer = make("SimPairedReservoir" if paired else "FIFO", 200, steps=100)
    with no_threads_left(), ExitStack() as stack:
        stub = StubWorker(buffer, paired=paired, address=address)
        stack.callback(stub.close)
        training = Thread(take_all, stub.receiver, buffer)
        streams = iter(range(500, 1000))
        send_stream(stub, next(streams), 2, paired=paired)  # what all samples look like

        def check():
            send_stream(stub, next(streams), 2, paired=paired)

        greetings = [{"stream": number, "stream_key": KEYS.of(number)} for number in range(3)]
        then = [
            ({"sample": 0, **({"step": 0} if paired else {})}, [np.ones(1, np.float32)]),
            ({"sample": 0, "count": 2, "steps": [0, 1]}, [np.ones((2, 1), np.float32)]),
            ({"end": True}, []),
        ]
        attack(
            Target(
                [Door(stub.url, KEYS.token, greetings, then)], check, {"receiver", "connections"}
            ),
            seed,
            messages,
        )
        assert stub.receiver.failed is None
        buffer.signal_reception_over()
        training.result()


def take_all(receiver, buffer):
    """Train: take what comes, and make checkpoints, until the end of reception."""
    while not buffer.reception_over:
        with np.errstate(all="ignore"), suppress(queue.Empty):
            buffer.get(timeout=0.001)
        state, offsets = receiver.snapshot()
        encode_value({"buffer": state, "offsets": offsets})
        torch.tensor(list(offsets.items()), dtype=torch.int64)


class Indifferent(nn.Linear):
    """A network that no sample can harm."""

    def __init__(self):
        super().__init__(3, 1, bias=False)

    def forward(self, x):
        return self.weight.sum().expand(len(x))


class StopAtLast(Callback):
    """Stops a fit when it is told to."""

    told = False

    def on_round_end(self, trainer, record):
        if self.told:
            trainer.stop("told")


def test_the_coordinator_and_a_worker_of_a_fit(shared_local, seed, messages, monkeypatch):
    shared_local.reserve([Resources()] * 4)
    stopping = StopAtLast()
    address = f"tcp://{HERE}:{free_port()}"
    trainer = build_trainer(shared_local, 1, Indifferent(), COUNTING_SGD, sum_loss)
    options = {
        "buffer": BufferSpec("FIFO", 50),
        "batch_size": 1,
        "record_every": 0.05,
        "checkpoint_every": 0.05,
    }
    options |= {"senders": 10**6, "address": address, "token": TOKEN, "progress": False}

    servers = []
    listen = EventServer.listen_for_senders

    def noted(server, *where):
        listening = listen(server, *where)
        servers.append(server)
        return listening

    monkeypatch.setattr(EventServer, "listen_for_senders", noted)

    def told():
        """Return what a sender is told: its greeting to a worker, and where that is."""
        with Address(address, TOKEN).connect({"role": "sender", "name": None}) as sender:
            header, _ = sender.receive(LIMIT)
            greeting = {name: header[name] for name in ("stream", "stream_key")}
            return greeting, header["key"], *header["workers"]

    def fit():
        online(trainer, None, (), callbacks=[stopping], **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of senders that fail
        fitting = Thread(fit)
        wait_until(lambda: servers)
        wait_until(lambda: all(told()))

        def check():
            from compss_train import SampleSender

            with SampleSender(address, TOKEN) as sender:
                sender.send(X)

        check()
        tasks = servers[0].address
        greetings, (key, *_), (worker, *_) = zip(*(told() for _ in range(3)), strict=True)
        senders = [{"role": "sender", "name": name} for name in ("a", "b", None)]
        roles = [{"role": "worker", "number": 0}, {"role": "simulation", "number": 0}]
        doors = [
            Door(address, TOKEN, senders, [({"finished": 3}, []), ({"failed": "why"}, [])]),
            Door(tasks.url, tasks.token, roles, [({"report": True}, [X]), ({"finished": 3}, [])]),
            Door(
                worker,
                key,
                list(greetings),
                [({"sample": 0}, [X]), ({"end": True}, [])],
            ),
        ]
        attack(Target(doors, check), seed, messages)
        assert told()[1:] == (key, worker)  # which was not replaced
        stopping.told = True
        # The record of this sample stops the fit, or one before it.
        with suppress(OSError, TrainingEndedError):
            check()
        fitting.join(LIMIT)
        fitting.result()
    assert trainer.stopped == "told"


def fit_of_nobody(engine, server, folder):
    """Return the event loop of a fit with two workers and three simulations, which do not run."""
    session = SimpleNamespace(
        engine=engine,
        num_workers=2,
        separate_states=lambda: [(), ()],
        state=TrainingState,
        device=lambda worker: "cpu",
        resources=Resources(),
    )
    options = OnlineOptions(
        buffer=BufferSpec("FIFO", 9), batch_size=1, merge=online_merge("parameter_server")
    )
    job = OnlineJob(
        coordinator=server.address,
        keys=KEYS,
        host=None,
        server_address=None,
        num_workers=2,
        options=options,
        seed=0,
    )
    reports = Reports(2, None)
    spec = SimpleNamespace(weightless=str, roots=lambda: {"loss": print, "collate": lambda: None})
    workers = Workers(session, spec, job, reports=reports, folder=Path(folder))
    router = StreamRouter(workers.all, KEYS, paired=False)
    simulations = Simulations(
        print, range(10**6), count=3, senders=10**6, address="tcp://a:1", token=TOKEN
    )
    runs = TaskRuns(
        simulations,
        Inputs(simulations.inputs),
        engine,
        count=simulations.count,
        router=router,
        job=job,
    )
    return EventLoop(
        job=job,
        described_options={},
        server=server,
        parameters=None,
        workers=workers,
        router=router,
        sources=Sources(runs, ExternalSenders(10**6, router)),
        recorder=SimpleNamespace(reports=reports, complete=lambda: None),
        ending=Ending(Stopping(), keeps_saves=False),
        keeps_saves=False,
    )


class AcceptedTasks:
    """A coordinator whose tasks run nowhere, so that whoever connects is accepted as one of them.

    It ends where a task may end a fit: if it reports an error, and if it dies too often.
    """

    def __init__(self, folder):
        self._engine = SimpleNamespace(
            traits=Traits(interruptible=False),
            submit=lambda *args, resources: None,
            arrived=lambda refs: [],
            wait=lambda refs, seconds: [],
            publish=lambda value: value,
        )
        self._folder = folder
        self.server = EventServer(HERE)
        self.senders = self.server.listen_for_senders(f"tcp://{HERE}:*", TOKEN)
        self.errors = []
        self._closed = threading.Event()
        self._running = Thread(self._run)

    def _fit(self):
        return fit_of_nobody(self._engine, self.server, self._folder)

    def _run(self):
        fit = self._fit()
        with self.server:
            while not self._closed.is_set():
                try:
                    fit.sources.runs.start()
                    received = self.server.next(0.02)
                    if received is not None:
                        fit.handle(received)
                    fit.sources.runs.check(1)
                except (WorkerLostError, SimulationError) as error:
                    self.errors.append(error)
                    fit = self._fit()
                except RuntimeError as error:
                    if not str(error).startswith("worker "):
                        raise
                    self.errors.append(error)
                    fit = self._fit()

    def close(self):
        self._closed.set()
        self._running.result()


def test_a_coordinator_with_tasks_that_it_has_accepted(tmp_path, seed, messages):
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # of simulations and senders that fail
        coordinator = AcceptedTasks(str(tmp_path))
        stack.callback(coordinator.close)
        tasks = coordinator.server.address
        senders = coordinator.senders

        def check():
            with senders.connect({"role": "sender", "name": None}) as client:
                assert client.receive(LIMIT)[0]["accepted"]

        state = [encode_value({"random": 1, "optimizer": None}).numpy()]
        part = [encode_value({"worker": {"random": 1, "optimizer": None}, "batches": 1}).numpy()]
        report = [encode_value({"samples": 1, "batches": 1, "loss": 0.5}).numpy()]
        changed = [["loss", "a"], ["collate", "b"], ["c", ""]]
        doors = [
            Door(
                tasks.url,
                tasks.token,
                [{"role": "worker", "number": number} for number in (0, 1)],
                [
                    ({"url": "tcp://127.0.0.1:5"}, []),
                    ({"report": True}, report),
                    ({"part": 1}, [*part, X, np.array([[1, 5], [2, 7]])]),
                    ({"done": True, "repetitions": [0, 3], "changed_variables": changed}, state),
                    ({"failed": "why", "traceback": "where"}, []),
                ],
            ),
            Door(
                tasks.url,
                tasks.token,
                [
                    *({"role": "simulation", "number": number} for number in range(20)),
                    {"role": "evaluation"},
                ],
                [
                    ({"finished": 3}, []),
                    ({"interrupted": "lost"}, []),
                    ({"failed": "why", "traceback": "where"}, []),
                    ({"timeout": 3.0, "stack": "where"}, []),
                ],
            ),
            Door(
                senders.url,
                senders.token,
                [{"role": "sender", "name": name} for name in ("a", "b", None)],
                [({"finished": 3}, []), ({"failed": "why"}, [])],
            ),
        ]
        attack(Target(doors, check), seed, messages)
