"""Training while simulations run on two nodes: long tasks find the coordinator, and those that die run again."""

import os
import signal

import numpy as np
import pytest

from compss_train import BufferSpec
from tests.online.fits import build_trainer, fit_and_count, fit_online, split_range
from tests.online.simulations import COUNTING_SGD, CountingNet, OneHotSimulation, one_hot, sample_counts, sum_loss
from tests.online.solvers.compiled import compiled, mpirun, solver


def test_queues_of_two_workers_train_each_sample_once(shared_ray):
    numbers = [range(40), range(40, 41), (), range(41, 60), range(60, 101)]
    trainer = build_trainer(shared_ray, 2, CountingNet(101), COUNTING_SGD, sum_loss)
    parameters = fit_online(
        trainer, OneHotSimulation(101), numbers, buffer=BufferSpec("FIFO", 16), count=2, every=2
    )
    assert sample_counts(parameters, 2) == [1] * 101
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 5, "failed": 0}


def sample(number, step, fields):
    np.testing.assert_array_equal(fields["u"], np.repeat([step, 10.0 + step], 4))
    return one_hot(6 * number + step, 18), np.float32(0)


def test_a_solver_with_two_ranks_of_which_one_is_killed_loses_no_sample(shared_ray, tmp_path):
    command = [*mpirun(2, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))), "killed", str(tmp_path / "flag")]
    with pytest.warns(UserWarning, match="ChildProcessError: mpirun"):
        _, trained = fit_and_count(shared_ray, CountingNet(18), solver(command, sample), range(3))
    assert trained == [1] * 18


class DyingOnce(OneHotSimulation):
    """Its process is killed once, in the middle of a simulation."""

    def __init__(self, samples, flag):
        super().__init__(samples)
        self.flag = flag

    def __call__(self, numbers):
        for number, sample in zip(numbers, super().__call__(numbers), strict=True):
            if number == 12 and not self.flag.exists():
                self.flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample


@pytest.mark.slow  # another process imports torch
def test_a_simulation_that_dies_runs_again(shared_ray, tmp_path):
    simulate = DyingOnce(20, tmp_path / "died")
    with pytest.warns(UserWarning, match="its process died; retry 1 of 2"):
        _, trained = fit_and_count(shared_ray, CountingNet(20), simulate, split_range(20, 5), count=2)
    assert trained == [1] * 20
    assert simulate.flag.exists()
