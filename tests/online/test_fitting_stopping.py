"""Online fits that stop: by a callback, by time, and during an evaluation; and what a fit leaves
behind.
"""

import itertools
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback, Checkpoint
from compss_train.training.checkpoints import read_latest_checkpoint
from compss_train.training.snapshot import Snapshot
from tests.helpers.models import ADAM, assert_same_bits
from tests.helpers.waiting import settled, wait_until
from tests.online.fits import FIFO, build_trainer, fit_online, online
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    EndlessSimulation,
    OneHotSimulation,
    sum_loss,
)

ENDLESS = 10**6


def simulate(samples):
    for number in range(samples):
        yield torch.full((3,), float(number % 7)), torch.zeros(1)


class BlockedInEvaluation(nn.Linear):
    """Blocks in evaluation until a file is created, or its folder was removed with the test."""

    def __init__(self, flag):
        super().__init__(3, 1)
        self.flag = flag

    def forward(self, x):
        if not self.training:
            wait_until(lambda: self.flag.exists() or not self.flag.parent.exists())
        return super().forward(x)


class HookRecorder(Callback):
    """Records the rounds that its hooks are called for, and stops the fit at one of them."""

    def __init__(self, last):
        self.last = last
        self.calls = []

    def on_round_start(self, trainer, number):
        self.calls.append(("start", number))

    def on_round_end(self, trainer, record):
        self.calls.append(("end", record["round"]))
        if record["round"] == self.last:
            trainer.stop("enough")


def fit(local, net=None, workers=1, **options):
    trainer = DistributedTrainer(workers, engine=local, seed=0, threads=1)
    trainer.build(net or nn.Linear(3, 1), ADAM, "mse")
    given = {"buffer": FIFO, "batch_size": 5, "every": 2, "record_every": 0.05}
    online(trainer, simulate, [ENDLESS], **(given | options), progress=False)
    return trainer


def test_a_callback_stops_an_endless_fit_and_rounds_alternate(local, tmp_path):
    recorder = HookRecorder(3)
    trainer = fit(local, workers=2, callbacks=[recorder, Checkpoint(tmp_path)])
    assert trainer.stopped == "enough"
    rounds = len(trainer.history)
    assert rounds >= 4
    assert recorder.calls == [
        (hook, number) for number in range(rounds) for hook in ("start", "end")
    ]
    snapshot = Snapshot.from_dict(read_latest_checkpoint(tmp_path)[1], tmp_path)
    assert_same_bits(snapshot.parameters, trainer.get_parameters())
    assert (len(snapshot.history), snapshot.progress) == (rounds, None)


def test_an_endless_fit_stops_in_time(local):
    trainer = fit(local, max_time=0.5)
    assert trainer.stopped == "max_time"


def test_an_evaluation_does_not_delay_an_urgent_stop(local, tmp_path):
    flag = tmp_path / "flag"
    try:
        trainer = fit(
            local,
            BlockedInEvaluation(flag),
            max_time=0.5,
            validation_data=(torch.zeros(4, 3), torch.zeros(4, 1)),
        )
        assert trainer.stopped == "max_time"
        assert trainer.history == []
    finally:
        flag.touch()


def test_a_fit_leaves_nothing_behind(local, tmp_path):
    trainer = build_trainer(local, 1, CountingNet(10), COUNTING_SGD, sum_loss)

    def fits():
        fit_online(trainer, OneHotSimulation(10), [range(10)], batch_size=5)
        held_out = np.eye(10, dtype=np.float32), np.zeros(10, np.float32)
        fit_online(
            trainer,
            EndlessSimulation(10, tmp_path),
            itertools.count(),
            max_batches=2,
            validation_data=held_out,
        )

    def state():
        me = psutil.Process()
        processes = me.children(recursive=True)
        tcp = 0
        for process in [me, *processes]:
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                tcp += len(process.net_connections("tcp"))
        files = [
            file for folder in local.folders for file in Path(folder).rglob("*") if file.is_file()
        ]
        return {
            # One of a simulation that did not notice the end may have been replaced.
            "processes": len(processes),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "files": len(files),
            "descriptors": me.num_fds(),
            "connections": tcp,
            "folders": len(list(Path(tempfile.gettempdir()).glob(f"compss_train-{me.pid}-*"))),
        }

    def returns_to(before):
        wait_until(
            lambda: state() == before,
            40,
            every=0.05,
            said=lambda: f"it was {before} and is {state()}",
        )

    def unended():
        return state()["threads"].count("end of a context")

    fits()
    while True:
        before = settled(state, apart=0.2)
        contexts = unended()
        fits()
        fits()
        try:
            return returns_to(before)
        except TimeoutError:
            if unended() == contexts:  # otherwise it is ZeroMQ that has left them (see sockets.end)
                raise
