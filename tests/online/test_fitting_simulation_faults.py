"""fit_online: simulations that raise, hang and die."""

import re
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from compss_train import BufferSpec
from compss_train.exceptions import SimulationError, WorkerTraceback
from tests.online.fits import fit_and_count, run_fit, split_range
from tests.online.simulations import (
    CallAll,
    CountingNet,
    Fault,
    OneHotSimulation,
    TouchFile,
    increment,
    kill_process,
    raise_error,
    read_count,
    sample_counts,
)

pytestmark = pytest.mark.usefixtures("check_threads")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_simulation_that_raises_once_is_retried(local, tmp_path, workers):
    fault = Fault(17, raise_error, tmp_path)
    with pytest.warns(UserWarning, match="1 of input range.10, 20. failed: ArithmeticError: .*; retry 1 of 2"):
        trainer, trained = fit_and_count(
            local,
            CountingNet(40),
            OneHotSimulation(40, fault),
            split_range(40, 10),
            workers=workers,
            count=2,
        )
    assert fault.count == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 4, "failed": 0}
    assert trainer.history[-1]["received"] == 40


def test_a_simulation_that_always_raises_is_skipped(local, tmp_path):
    fault = Fault(17, raise_error, tmp_path, times=100)
    with pytest.warns(UserWarning, match="(?s)simulation 1 of .* failed") as warned:
        trainer, trained = fit_and_count(
            local,
            CountingNet(40),
            OneHotSimulation(40, fault),
            split_range(40, 10),
            count=2,
            retries=1,
        )
    assert fault.count == 2
    assert trained == [1] * 17 + [0] * 3 + [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 3, "failed": 1}
    messages = [str(warning.message) for warning in warned]
    assert len(messages) == 2
    assert "skipped after" in messages[1]
    assert "in raise_error" in messages[1]


def test_an_error_is_raised_if_all_simulations_fail(local, tmp_path):
    fault = Fault(0, raise_error, tmp_path, times=100)
    with pytest.warns(UserWarning, match="simulation .* failed"):
        trainer, error = run_fit(local, CountingNet(5), OneHotSimulation(5, fault), [[0]] * 4, retries=1)
    assert isinstance(error, SimulationError)
    assert re.search(r"simulation 0 of input \[0\] failed: ArithmeticError: the solver met a singular", str(error))
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "in raise_error" in str(error.__cause__)
    assert fault.count >= 2
    assert sample_counts(trainer.get_parameters(), 1) == [0] * 5


def test_samples_of_a_skipped_simulation_are_trained_on(local, tmp_path):
    """Some samples are still in sockets when the coordinator knows that no more will come."""

    def simulate(_):
        yield from OneHotSimulation(12)(range(12))
        threading.Timer(0.5, (tmp_path / "failed").touch).start()
        raise_error()

    net = CountingNet(12, TouchFile(0, until=tmp_path / "failed"))
    with pytest.warns(UserWarning, match="(?s)singular matrix; skipped after 1 failures"):
        _, trained = fit_and_count(local, net, simulate, [0], retries=0, buffer=BufferSpec("FIFO", 5))
    assert trained == [1] * 12


def test_an_unpicklable_input_raises_in_the_caller(local):
    _, error = run_fit(local, CountingNet(5), OneHotSimulation(5), [threading.Lock()])
    assert isinstance(error, TypeError)
    assert "pickle" in str(error)
    assert local.ends


def sleep_long() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.01)


def compute_long() -> None:
    """Compute in C, with the interpreter lock held."""
    re.match(r"(a|a)*b", "a" * 34)


@pytest.mark.parametrize(("hang", "said"), [(sleep_long, "in sleep_long"), (compute_long, "")])
def test_a_hanging_simulation_is_retried(local, tmp_path, hang, said):
    fault = Fault(7, hang, tmp_path)
    with pytest.warns(UserWarning, match="(?s)simulation 0 .*; retry 1 of") as warned:
        trainer, trained = fit_and_count(
            local,
            CountingNet(20),
            OneHotSimulation(20, fault),
            split_range(20, 10),
            timeout=3.0,  # a process that replaces one imports torch meanwhile
            count=2,
        )
    assert said in str(warned[0].message)
    assert fault.count == 1
    assert trained == [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


def test_blocking_on_a_full_buffer_does_not_time_out(local, tmp_path):
    """Training starts long after the timeout of the first sample, and samples are large."""
    threading.Timer(1.0, (tmp_path / "go").touch).start()

    def simulate(numbers):
        for x, _ in OneHotSimulation(50)(numbers):
            yield x, np.zeros(250_000, np.float32)

    net = CountingNet(50, TouchFile(0, until=tmp_path / "go"))
    options = {"timeout": 0.3, "buffer": BufferSpec("FIFO", 5)}
    _, trained = fit_and_count(local, net, simulate, [range(50)], **options)
    assert trained == [1] * 50


def test_a_killed_simulation_is_retried(local, tmp_path):
    """The retry sends the missing samples while some of the first attempt are still in sockets."""
    fault = Fault(28, kill_process, tmp_path)
    net = CountingNet(40, TouchFile(10, until=tmp_path / "again"))
    simulate = OneHotSimulation(40, CallAll((fault, TouchFile(29, tmp_path / "again"))))
    with pytest.warns(UserWarning, match="simulation 1 .* failed: its process died; retry 1 of"):
        trainer, trained = fit_and_count(local, net, simulate, split_range(40, 20), buffer=BufferSpec("FIFO", 10))
    assert fault.count == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


@pytest.mark.timeout(15)
def test_a_reservoir_of_pairs_that_is_too_small_raises(local, tmp_path):
    """It holds the first steps of two simulations, which cannot be paired, when a third one arrives."""
    buffer = BufferSpec("SimPairedReservoir", 2, threshold=0, sweep_size=3, nb_time_steps=2)
    options = {"buffer": buffer, "pairing": early_and_late, "count": 3, "batch_size": 2}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _, error = run_fit(local, nn.Linear(1, 1), SynchronizedSteps(tmp_path), range(3), retries=0, **options)
    said = " ".join([str(error), *(str(warning.message) for warning in warned)])
    assert "all 2 samples held are of different simulations" in said


@dataclass(frozen=True)
class SynchronizedSteps:
    """Yields a second step after three first ones were sent."""

    folder: Path

    def __call__(self, number):
        for step in range(2):
            yield step, np.float32([number]), np.float32([0])
            increment(self.folder / "sent")
            until = time.monotonic() + 10
            while read_count(self.folder / "sent") < 3 and time.monotonic() < until:
                time.sleep(0.005)


def early_and_late(early, late):
    return early.data
