"""fit_online: workers that are killed."""

import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from compss_train import BufferSpec, WorkerLostError
from compss_train.online import workers
from tests.online.fits import counted, online, split
from tests.online.simulations import All, Counter, Hots, Touch, Trouble, accumulator, kill, tallied

pytestmark = pytest.mark.usefixtures("no_threads_are_left")


def test_a_killed_worker_goes_on_from_its_checkpoint(local, tmp_path):
    """The checkpoint has samples of simulations that have ended, and of one that goes on, whose next sample was
    sent and is not in it: the buffer was full."""
    trouble, noting = Trouble(35, kill, tmp_path), Noting(tmp_path / "batches")
    net = Counter(60, All((Touch(30, until=tmp_path / "52"), noting, trouble)))
    simulate = Hots(60, Touch(52, tmp_path / "52", until=tmp_path / "trouble-35"))
    options = {"checkpoint_every": 1e-6, "merge_every_batches": 100}
    trainer, trained = counted(local, net, simulate, split(60, 10), **options)
    assert trouble.happened == 1
    assert trained == noting.trained(60, trouble.at) == [1] * 60
    assert trainer.history[-1]["repetitions"] == [0, 60]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 6, "failed": 0}


def test_batches_are_counted_on_from_the_checkpoint(local, tmp_path):
    trouble = Trouble(35, kill, tmp_path)
    options = {"checkpoint_every": 1e-6, "max_batches": 9}
    _, trained = counted(local, Counter(100, trouble), Hots(100), split(100, 10), **options)
    assert trouble.happened == 1
    assert trained[:40] == [1] * 40
    assert sorted(trained) == [0] * 55 + [1] * 45  # those of a simulation that runs again may come later


@dataclass(frozen=True)
class Noting:
    """Notes batches in a file."""

    path: Path

    def __call__(self, numbers):
        with self.path.open("a") as file:
            file.write(" ".join(map(str, numbers)) + "\n")

    def trained(self, samples, fatal):
        """How often each sample was in a batch, but for the first batch that had a fatal one."""
        batches = [list(map(int, line.split())) for line in self.path.read_text().splitlines()]
        batches.remove(next(batch for batch in batches if fatal in batch))
        return [sum(batch.count(number) for batch in batches) for number in range(samples)]


def test_a_worker_that_is_killed_before_a_checkpoint_gets_all_samples_again(local, tmp_path):
    """All simulations but the last, which waits for the kill, may have ended by then."""
    trouble, noting = Trouble(31, kill, tmp_path), Noting(tmp_path / "batches")
    trainer, trained = counted(
        local,
        Counter(60, All((noting, trouble))),
        Hots(60, Touch(50, until=tmp_path / "trouble-31")),
        split(60, 10),
        num_simulators=2,
        checkpoint_every=1000,
        buffer=BufferSpec("FIFO", 60),
    )
    assert trouble.happened == 1
    assert trained == noting.trained(60, trouble.at)
    assert {*trained} == {1, 2}
    assert trainer.history[-1]["repetitions"] == [0, 60]


def test_a_killed_worker_that_saves_nothing_loses_what_it_held(local, tmp_path):
    """Of simulations that have ended, and nothing else; nobody waits for what is lost."""
    trouble = Trouble(31, kill, tmp_path)
    options = {"checkpoint_every": None, "buffer": BufferSpec("FIFO", 60)}
    simulate = Hots(60, Touch(55, tmp_path / "55", until=tmp_path / "trouble-31"))
    net = Counter(60, All((Touch(0, until=tmp_path / "55"), trouble)))
    trainer, trained = counted(local, net, simulate, split(60, 10), **options)
    assert trouble.happened == 1
    assert trained == [1] * 30 + [0] * 20 + [1] * 10
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 6, "failed": 0}


@pytest.mark.slow
def test_one_of_two_workers_is_killed(local, tmp_path):
    trouble = Trouble(31, kill, tmp_path)
    buffer = BufferSpec("Reservoir", 20)
    options = {"workers": 2, "num_simulators": 2, "checkpoint_every": 0.01, "buffer": buffer}
    _, trained = counted(local, Counter(60, trouble), Hots(60), split(60, 10), **options)
    assert trouble.happened == 1
    assert min(trained) >= 1


def test_a_worker_that_dies_after_all_simulations_have_ended_gets_them_again(local, tmp_path):
    """It has everything, and nothing was saved; the other one has been told that nothing more comes."""
    trouble = Trouble(19, kill, tmp_path)
    trainer, trained = counted(
        local,
        Counter(40, trouble),
        Hots(40),
        split(40, 20),
        workers=2,
        checkpoint_every=1000,
        merge_every_batches=100,  # so that nothing of what the first one learns is merged
        buffer=BufferSpec("FIRO", 30, threshold=25),  # begins when all has come
    )
    assert trouble.happened == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


def test_a_worker_that_dies_while_a_simulation_waits_for_another_one(local, tmp_path):
    """The simulation has the first worker's word that it has all; then that one dies, and has a successor, while
    the buffer of the second one is still full."""
    trouble = Trouble(38, kill, tmp_path, after=tmp_path / "finishing")  # the first worker has the even samples
    net = Reborn(40, All((Touch(1, until=tmp_path / "successor"), trouble)), trouble)

    def simulate(numbers):
        yield from Hots(40)(numbers)
        threading.Timer(0.5, (tmp_path / "finishing").touch).start()

    options = {"workers": 2, "checkpoint_every": 1000, "buffer": BufferSpec("FIFO", 8)}
    _, trained = counted(local, net, simulate, [range(40)], **options)
    assert trouble.happened == 1
    assert min(trained) >= 1


class Reborn(Counter):
    """Tells when another process has it after the trouble."""

    def __init__(self, samples, seeing, trouble):
        super().__init__(samples, seeing)
        self.trouble = trouble

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.trouble.happened:
            threading.Timer(0.5, (self.trouble.folder / "successor").touch).start()


def test_a_worker_that_dies_again_and_again_is_an_error(local, tmp_path, monkeypatch):
    assert workers.RUNS == 4
    monkeypatch.setattr(workers, "RUNS", 2)
    trouble = Trouble(3, kill, tmp_path, times=100)
    _, error = online(local, Counter(20, trouble), Hots(20), [range(20)])
    assert isinstance(error, WorkerLostError)
    assert "worker 0 was started 2 times and its process died each time" in str(error)
    assert trouble.happened == 2


class DyingAtTheEnd(torch.optim.SGD):
    """Kills its process when it is asked for its state, which is what a worker gives back at its end."""

    def __init__(self, parameters, flag, parent):
        super().__init__(parameters, lr=1.0)
        self.flag, self.parent = flag, parent

    def state_dict(self):
        if os.getpid() != self.parent and not accumulator(self.flag):
            kill()
        return super().state_dict()


@pytest.mark.timeout(20)
def test_a_worker_that_dies_when_all_is_done_does_not_hang_the_fit(local, tmp_path):
    optimizer = partial(DyingAtTheEnd, flag=tmp_path / "died", parent=os.getpid())
    options = {"optimizer": optimizer, "checkpoint_every": None}
    _, trained = counted(local, Counter(20), Hots(20), [range(20)], **options)
    assert tallied(tmp_path / "died") >= 1
    assert min(trained) >= 1
