"""fit_online: simulations that raise, hang and die."""

import itertools
import re
import sys
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
    one_hot,
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


def test_an_error_is_raised_if_endless_simulations_all_fail(local, tmp_path, monkeypatch):
    monkeypatch.setattr("compss_train.online.simulation_runs.REPORT_SECONDS", 0.3)
    fault = Fault(0, raise_error, tmp_path, times=10**6)
    inputs = itertools.repeat([0])
    with pytest.warns(UserWarning, match="simulation .* failed"):
        _, error = run_fit(local, CountingNet(5), OneHotSimulation(5, fault), inputs, retries=0)
    assert isinstance(error, SimulationError)


def invalid_samples(which):
    good = one_hot(0, 5), np.float32(0)
    for number in range(3):
        yield one_hot(number, 5), np.float32(0)
    yield {
        "no tuple": lambda: "a word",
        "nothing": lambda: None,
        "too many": lambda: (1, 2, 3, 4),
        "empty": lambda: (),
        "alone": lambda: good[0],
        "objects": lambda: (np.array([None, 3]), good[1]),
        "ragged": lambda: ([[1.0], [2.0, 3.0]], good[1]),
        "shape": lambda: (one_hot(0, 6), good[1]),
        "dtype": lambda: (good[0].astype(np.float64), good[1]),
        "big-endian": lambda: (good[0].astype(">f4"), good[1]),
        "words": lambda: (np.array(["a"]), good[1]),
        "step": lambda: ("first", *good),
    }[which]()


REASONS = {
    "no tuple": "",
    "nothing": "",
    "too many": "a tuple of 4",
    "empty": "a tuple of 0",
    "alone": "a sample of",
    "objects": "",
    "ragged": "",
    "shape": "a worker rejected a sample",
    "dtype": "a worker rejected a sample",
    "big-endian": "",
    "words": "",
    "step": "first",
}


@pytest.mark.parametrize("which", REASONS)
def test_invalid_samples_skip_their_simulation_with_a_warning(local, which):
    def simulate(what):
        return invalid_samples(what) if isinstance(what, str) else OneHotSimulation(5)(what)

    with pytest.warns(UserWarning, match=rf"(?s)simulation 0 of input '{which}' failed: .*{REASONS[which]}"):
        trainer, trained = fit_and_count(local, CountingNet(5), simulate, [which, [3, 4]], retries=0)
    assert trained[3:] == [1, 1]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 1, "failed": 1}


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


def returns_none(_):
    return None


class Unpicklable:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return (int, ("no number",))


@pytest.mark.parametrize(
    ("simulate", "value", "said"),
    [
        (returns_none, 0, "not iterable"),
        (OneHotSimulation(5), Unpicklable(), "no number"),
        (sys.exit, "code 7", "SystemExit"),
    ],
    ids=["nothing to iterate over", "input", "exit"],
)
def test_simulations_that_cannot_start_are_reported(local, simulate, value, said):
    with pytest.warns(UserWarning, match="skipped after"):
        _, error = run_fit(local, CountingNet(5), simulate, [value], retries=0)
    assert isinstance(error, SimulationError)
    assert said in str(error)


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
    started = time.monotonic()
    with pytest.warns(UserWarning, match="(?s)simulation 0 .*; retry 1 of") as warned:
        trainer, trained = fit_and_count(
            local,
            CountingNet(20),
            OneHotSimulation(20, fault),
            split_range(20, 10),
            timeout=0.5,
            count=2,
        )
    assert said in str(warned[0].message)
    assert fault.count == 1
    assert trained == [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}
    assert time.monotonic() - started < 15


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


def test_a_simulation_that_always_dies_is_skipped(local, tmp_path):
    """It has given samples, so that the failure does not end the fit."""
    fault = Fault(7, kill_process, tmp_path, times=100)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer, trained = fit_and_count(
            local, CountingNet(20), OneHotSimulation(20, fault), split_range(20, 10), retries=1
        )
    assert ["skipped after" in str(warning.message) for warning in warned] == [False, True]
    assert max(trained[:7]) <= 1  # what a process has sent may be lost with it
    assert trained[7:] == [0] * 3 + [1] * 10
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 1, "failed": 1}


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
