"""fit_online: simulations that raise, hang and die."""

import itertools
import re
import threading

import numpy as np
import pytest

from compss_train import BufferSpec, SimulationError
from tests.helpers.waiting import hang
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


def test_a_simulation_that_raises_once_is_retried(local, tmp_path):
    fault = Fault(17, raise_error, tmp_path)
    with pytest.warns(
        UserWarning, match=("1 of input range.10, 20. failed: ArithmeticError: .*; retry 1 of 2")
    ):
        trainer, trained = fit_and_count(
            local,
            CountingNet(40),
            OneHotSimulation(40, fault),
            split_range(40, 10),
            workers=2,
            count=2,
        )
    assert fault.count == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 4, "failed": 0}
    assert trainer.history[-1]["received"] == 40


def test_samples_of_a_skipped_simulation_are_trained_on(local, tmp_path):
    """Some samples are still in sockets when the coordinator knows that no more will come."""

    def simulate(_):
        yield from OneHotSimulation(12)(range(12))
        threading.Timer(0.5, (tmp_path / "failed").touch).start()
        raise_error()

    net = CountingNet(12, TouchFile(0, until=tmp_path / "failed"))
    with pytest.warns(UserWarning, match="(?s)singular matrix; skipped after 1 failures"):
        trainer, error = run_fit(local, net, simulate, [0], retries=0, buffer=BufferSpec("FIFO", 5))
    assert sample_counts(trainer.get_parameters(), 1) == [1] * 12
    assert isinstance(error, SimulationError)
    said = (
        "simulation 0 of input 0 failed: ArithmeticError: the solver met a singular matrix; "
        "no simulation is"
    )
    assert str(error) == f"{said} complete, and 1 were given up"
    assert "in raise_error" in str(error.__cause__)
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 0, "failed": 1}


def test_simulations_that_are_given_up_are_named_at_the_end(local, tmp_path):
    def simulate(number):
        yield one_hot(number, 12), np.float32(0)
        if number % 2:
            raise ArithmeticError(f"{number} is odd")

    with pytest.warns(UserWarning) as warned:  # noqa: PT030 (the last one counts)
        trainer, trained = fit_and_count(local, CountingNet(12), simulate, range(12), retries=0)
    assert trained == [1] * 12
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 6, "failed": 6}
    names = ", ".join(f"simulation {number} of input {number}" for number in (1, 3, 5, 7, 9))
    assert str(warned[-1].message) == (
        f"6 of 12 simulations were given up, and samples of them are missing: {names}, 1 more; "
        "the first failure: simulation 1 of input 1 failed: ArithmeticError: 1 is odd"
    )
    assert [str(warning.message).count("Traceback") for warning in warned] == [1, 0, 0, 0, 0, 0, 0]


def test_a_mistake_ends_a_study_before_it_has_run_through_its_inputs(local, tmp_path):
    def simulate(number):
        increment(tmp_path / "begun")
        yield nothing_of_this_name, number  # noqa: F821

    with pytest.warns(UserWarning, match="skipped, as it would fail again"):
        _, error = run_fit(local, CountingNet(5), simulate, itertools.count())
    assert isinstance(error, SimulationError)
    said = "simulation 0 of input 0 failed: NameError: name 'nothing_of_this_name' is not defined"
    assert str(error) == (
        f"{said}; the first 3 simulations failed at this line, and none has sent a sample"
    )
    assert "yield nothing_of_this_name" in str(error.__cause__)
    assert 3 <= read_count(tmp_path / "begun") <= 4


def test_samples_of_two_shapes_are_one_error_that_names_both(local, recwarn, capfd):
    def simulate(number):
        yield np.zeros(4 + number // 3, np.float32), np.float32(0)

    _, error = run_fit(local, CountingNet(4), simulate, range(100), workers=2, count=2)
    assert isinstance(error, SimulationError)
    assert re.fullmatch(
        r"simulation [3-5] of input [3-5] yielded what does not fit: "
        r"sample 0 has x: float32 \(5,\), y: float32 \(\), "
        r"where samples before it have x: float32 \(4,\), y: float32 \(\); "
        "all samples of a study need one shape and dtype",
        str(error),
    )
    assert not recwarn.list
    assert "disconnects" not in capfd.readouterr().err


def test_an_unpicklable_input_raises_in_the_caller(local):
    _, error = run_fit(local, CountingNet(5), OneHotSimulation(5), [threading.Lock()])
    assert isinstance(error, TypeError)
    assert "pickle" in str(error)


def compute_long() -> None:
    """Compute in C, with the interpreter lock held."""
    re.match(r"(a|a)*b", "a" * 34)


@pytest.mark.parametrize(("hang", "said"), [(hang, "in hang"), (compute_long, "")])
def test_a_hanging_simulation_is_retried(local, tmp_path, hang, said):
    fault = Fault(7, hang, tmp_path)
    with pytest.warns(UserWarning, match="(?s)simulation 0 .*; retry 1 of") as warned:
        trainer, trained = fit_and_count(
            local,
            CountingNet(20),
            OneHotSimulation(20, fault),
            split_range(20, 10),
            timeout=1.0,
            retries=9,  # of those that a slow machine makes hang
            count=2,
        )
    assert any(said in str(warning.message) for warning in warned)
    assert fault.count == 1
    assert trained == [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


def test_a_killed_simulation_is_retried(local, tmp_path):
    """The retry sends the missing samples while some of the first attempt are still in sockets."""
    fault = Fault(28, kill_process, tmp_path)
    net = CountingNet(40, TouchFile(10, until=tmp_path / "again"))
    simulate = OneHotSimulation(40, CallAll((fault, TouchFile(29, tmp_path / "again"))))
    with pytest.warns(UserWarning, match="simulation 1 .* failed: its process died; retry 1 of"):
        trainer, trained = fit_and_count(
            local, net, simulate, split_range(40, 20), buffer=BufferSpec("FIFO", 10)
        )
    assert fault.count == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}
