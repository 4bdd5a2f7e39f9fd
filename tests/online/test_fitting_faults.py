"""fit_online: exceptions, failing senders, Ctrl-C."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from compss_train import DivergedError, Simulations
from compss_train.callbacks import Callback
from compss_train.exceptions import WorkerTraceback
from tests.helpers.models import SGD, classification, mlp
from tests.helpers.processes import leftovers, session
from tests.helpers.waiting import settled, wait_until
from tests.online.fits import FIFO, fit_and_count, run_fit, split_range
from tests.online.simulations import (
    CountingNet,
    OneHotSimulation,
    TouchFile,
    increment,
    read_count,
    sample_counts,
    simulate_rows,
)

pytestmark = pytest.mark.usefixtures("check_threads")


class RaisingNet(CountingNet):
    def __init__(self, samples, number):
        super().__init__(samples)
        self.number = number

    def forward(self, x):
        if self.number in x.argmax(1):
            raise LookupError(f"not {self.number}, please")
        return super().forward(x)


def test_an_exception_in_the_network_ends_the_fit_at_once(local):
    _, error = run_fit(local, RaisingNet(20, 7), OneHotSimulation(20), itertools.repeat(range(20)), workers=2)
    assert isinstance(error, LookupError)
    assert "not 7, please" in str(error)
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "in forward" in str(error.__cause__)
    assert any("batch of x with shape (5, 20)" in note for note in error.__notes__)


@pytest.mark.parametrize(("merge_every", "record_every", "bad"), [(1, 1.0, 7), (1000, 1e-5, 18)])
def test_a_nan_loss_raises(local, merge_every, record_every, bad):
    x, y = classification(samples=20)
    x[bad] = np.nan
    options = {"record_every": record_every, "every": merge_every}
    trainer, error = run_fit(local, mlp(), simulate_rows, [(x, y)], loss="cross_entropy", optimizer=SGD, **options)
    assert isinstance(error, DivergedError)
    assert "became nan" in str(error).lower()
    assert all(np.isfinite(array).all() for array in trainer.get_parameters().values())


class FailingCallback(Callback):
    def on_round_end(self, trainer, record):
        raise LookupError("the disk is full")


def test_an_exception_in_a_callback_ends_everything_and_leaves_a_usable_trainer(local, tmp_path):
    simulate = OneHotSimulation(20, lambda _: increment(tmp_path / "produced"))
    trainer, error = run_fit(
        local, CountingNet(20), simulate, itertools.repeat(range(20)), callbacks=[FailingCallback()]
    )
    assert isinstance(error, LookupError)
    settled(lambda: read_count(tmp_path / "produced"))  # no more samples but one that was about to be sent
    before = np.array(sample_counts(trainer.get_parameters(), 1))
    assert before.sum() > 0  # merged before the exception
    trainer.fit_online(Simulations(OneHotSimulation(20), [range(20)]), buffer=FIFO, batch_size=5)
    assert (np.array(sample_counts(trainer.get_parameters(), 1)) - before == 1).all()


def test_an_exception_in_the_inputs_ends_everything(local, tmp_path):
    def inputs():
        yield range(20)
        raise LookupError("no more parameters")

    _, error = run_fit(local, CountingNet(20), OneHotSimulation(20), inputs())
    assert isinstance(error, LookupError)


def test_a_simulation_that_continues_after_training_is_ended(local, tmp_path):
    """It computes for long after the workers are done; its process is available to the next fit."""
    waiting = OneHotSimulation(20, TouchFile(10, until=tmp_path / "never"))
    _, trained = fit_and_count(local, CountingNet(20), waiting, [range(20)], max_batches=2, count=3)
    assert trained == [1] * 10 + [0] * 10
    _, trained = fit_and_count(local, CountingNet(20), OneHotSimulation(20), split_range(20, 5), count=3)
    assert trained == [1] * 20


SCRIPT = textwrap.dedent(
    """
    import pathlib, sys, threading
    import numpy as np
    from torch import nn
    from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations

    class Net(nn.Linear):
        def forward(self, x):
            (folder / "training").touch()
            return super().forward(x)

    def simulate(_):
        for step in range(20):
            yield np.ones(4, np.float32), np.float32(0)
        (folder / "hanging").touch()
        threading.Event().wait()

    folder = pathlib.Path(sys.argv[1])
    trainer = DistributedTrainer(1, engine="local", seed=0)
    trainer.build(Net(4, 1), {"optimizer": "adam", "lr": 0.01}, lambda output, target: output.mean())
    trainer.fit_online(
        Simulations(simulate, range(2)), buffer=BufferSpec("Reservoir", 50, threshold=5), batch_size=4,
        merge=Merge(every=5), checkpoint_every=0.1,
    )
    """
)


@pytest.fixture
def script(tmp_path):
    """Start a program that trains, in a session of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_until(lambda: (tmp_path / "training").exists() and (tmp_path / "hanging").exists(), 60)
    wait_until(lambda: list(tmp_path.glob("compss_train-*/0.checkpoint")), 20)
    yield process
    if session(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow  # a program and its workers import torch, for seconds
def test_ctrl_c_ends_everything(script, tmp_path):
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does
    wait_until(lambda: script.poll() is not None and not session(script.pid), 20)
    out, err = script.communicate()
    assert script.returncode in (130, -signal.SIGINT)
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out == ""
    assert leftovers(script.pid) == []
    assert list(tmp_path.glob("compss_train-*")) == []
