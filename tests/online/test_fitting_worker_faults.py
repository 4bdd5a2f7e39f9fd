"""fit_online: workers that are killed."""

import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from compss_train import BufferSpec
from tests.helpers.models import assert_same_bits
from tests.online.fits import fit_and_count, split_range
from tests.online.simulations import (
    CallAll,
    CountingNet,
    Fault,
    OneHotSimulation,
    TouchFile,
    increment,
    kill_process,
    read_count,
)

pytestmark = pytest.mark.usefixtures("check_threads")


def test_a_killed_worker_resumes_from_its_checkpoint(local, tmp_path):
    """The checkpoint has samples of completed simulations and of a running one, whose next sample
    was sent but is not in the checkpoint, as the buffer was full."""
    fault = Fault(35, kill_process, tmp_path)
    batches = BatchLog(tmp_path / "batches")
    net = CountingNet(60, CallAll((TouchFile(30, until=tmp_path / "52"), batches, fault)))
    simulate = OneHotSimulation(60, TouchFile(52, tmp_path / "52", until=tmp_path / "fault-35"))
    options = {"checkpoint_every": 1e-6}
    trainer, trained = fit_and_count(local, net, simulate, split_range(60, 10), **options)
    assert fault.count == 1
    assert trained == batches.trained(60, fault.at) == [1] * 60
    assert trainer.history[-1]["repetitions"] == [0, 60]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 6, "failed": 0}


def test_a_killed_worker_goes_on_with_its_average(local, tmp_path):
    """It has merged what it trained until its last save, and trains the rest once."""
    options = {"checkpoint_every": 1e-6, "averaging": 0.9, "averaging_unit": "steps"}
    fault = Fault(35, kill_process, tmp_path)
    net = CountingNet(60, CallAll((TouchFile(30, until=tmp_path / "52"), fault)))
    simulate = OneHotSimulation(60, TouchFile(52, tmp_path / "52", until=tmp_path / "fault-35"))
    disturbed, trained = fit_and_count(local, net, simulate, split_range(60, 10), **options)
    assert fault.count == 1
    assert trained == [1] * 60
    undisturbed, _ = fit_and_count(
        local, CountingNet(60), OneHotSimulation(60), split_range(60, 10), **options
    )
    averages = [fit.get_parameters(averaged=True) for fit in (disturbed, undisturbed)]
    assert_same_bits(*averages)


@dataclass(frozen=True)
class BatchLog:
    """Writes the samples of batches to a file."""

    path: Path

    def __call__(self, numbers):
        with self.path.open("a") as file:
            file.write(" ".join(map(str, numbers)) + "\n")

    def trained(self, samples, fatal):
        """Return how often each sample was in a batch, without the first batch that had the fatal
        one.
        """
        batches = [list(map(int, line.split())) for line in self.path.read_text().splitlines()]
        batches.remove(next(batch for batch in batches if fatal in batch))
        return [sum(batch.count(number) for batch in batches) for number in range(samples)]


def test_a_worker_killed_before_its_first_checkpoint_receives_all_samples_again(local, tmp_path):
    """All simulations except the last one, which waits for the kill, may have ended by then."""
    fault = Fault(31, kill_process, tmp_path)
    batches = BatchLog(tmp_path / "batches")
    trainer, trained = fit_and_count(
        local,
        CountingNet(60, CallAll((batches, fault))),
        OneHotSimulation(60, TouchFile(50, until=tmp_path / "fault-31")),
        split_range(60, 10),
        count=2,
        checkpoint_every=1000,
        buffer=BufferSpec("FIFO", 60),
    )
    assert fault.count == 1
    assert trained == batches.trained(60, fault.at)
    assert {*trained} == {1, 2}
    assert trainer.history[-1]["repetitions"] == [0, 60]


def test_a_killed_worker_without_checkpoints_receives_all_samples_again(local, tmp_path):
    """Also those of completed simulations, which run again; it has merged the first 30 before."""
    fault = Fault(31, kill_process, tmp_path)
    options = {"checkpoint_every": None, "buffer": BufferSpec("FIFO", 60)}
    simulate = OneHotSimulation(60, TouchFile(55, tmp_path / "55", until=tmp_path / "fault-31"))
    net = CountingNet(60, CallAll((TouchFile(0, until=tmp_path / "55"), fault)))
    trainer, trained = fit_and_count(local, net, simulate, split_range(60, 10), **options)
    assert fault.count == 1
    assert trained == [2] * 30 + [1] * 30
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 6, "failed": 0}


def test_a_worker_may_die_while_a_simulation_flushes_to_another(local, tmp_path):
    """The first worker has acknowledged all its samples; then it dies and is replaced while the
    buffer of the second one is still full."""
    fault = Fault(
        38, kill_process, tmp_path, after=tmp_path / "finishing"
    )  # the first worker gets the even samples
    net = RestartNet(40, CallAll((TouchFile(1, until=tmp_path / "restarted"), fault)), fault)

    def simulate(numbers):
        yield from OneHotSimulation(40)(numbers)
        threading.Timer(0.5, (tmp_path / "finishing").touch).start()

    options = {"workers": 2, "checkpoint_every": 1000, "buffer": BufferSpec("FIFO", 8)}
    _, trained = fit_and_count(local, net, simulate, [range(40)], **options)
    assert fault.count == 1
    assert min(trained) >= 1


class RestartNet(CountingNet):
    """Creates a file when another process has unpickled it after the fault."""

    def __init__(self, samples, on_batch, fault):
        super().__init__(samples, on_batch)
        self.fault = fault

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.fault.count:
            threading.Timer(0.5, (self.fault.folder / "restarted").touch).start()


class DyingAtTheEnd(torch.optim.SGD):
    """Kills its process when the worker reads its state at the end."""

    def __init__(self, parameters, flag, parent):
        super().__init__(parameters, lr=1.0)
        self.flag = flag
        self.parent = parent

    def state_dict(self):
        if os.getpid() != self.parent and not increment(self.flag):
            kill_process()
        return super().state_dict()


def test_a_worker_that_dies_after_its_training_does_not_block_the_fit(local, tmp_path):
    optimizer = partial(DyingAtTheEnd, flag=tmp_path / "died", parent=os.getpid())
    options = {"optimizer": optimizer, "checkpoint_every": None}
    _, trained = fit_and_count(local, CountingNet(20), OneHotSimulation(20), [range(20)], **options)
    assert read_count(tmp_path / "died") >= 1
    assert min(trained) >= 1
