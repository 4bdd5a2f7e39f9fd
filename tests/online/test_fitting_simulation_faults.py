"""fit_online: simulations that raise, hang and die."""

import re
import threading

import pytest

from compss_train import BufferSpec
from tests.helpers.waiting import hang
from tests.online.fits import fit_and_count, run_fit, split_range
from tests.online.simulations import (
    CallAll,
    CountingNet,
    Fault,
    OneHotSimulation,
    TouchFile,
    kill_process,
    raise_error,
)

pytestmark = pytest.mark.usefixtures("check_threads")


def test_a_simulation_that_raises_once_is_retried(local, tmp_path):
    fault = Fault(17, raise_error, tmp_path)
    with pytest.warns(UserWarning, match="1 of input range.10, 20. failed: ArithmeticError: .*; retry 1 of 2"):
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
        _, trained = fit_and_count(local, net, simulate, [0], retries=0, buffer=BufferSpec("FIFO", 5))
    assert trained == [1] * 12


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
            timeout=3.0,  # a process that replaces one imports torch meanwhile
            count=2,
        )
    assert said in str(warned[0].message)
    assert fault.count == 1
    assert trained == [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


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
