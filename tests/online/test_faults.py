"""fit_online: simulations that fail, hang and die, killed workers, exceptions, Ctrl-C."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, DivergedError, WorkerLostError
from compss_train.callbacks import Callback
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online import SampleSender, workers
from tests.models import SGD, classification, mlp
from tests.online.simulations import (
    COUNTING,
    All,
    Counter,
    Hots,
    Touch,
    Trouble,
    counts,
    fail,
    free_port,
    kill,
    one_hot,
    rows_of,
    tallied,
    tally,
    total,
)
from tests.test_faults import leftovers, session, wait_until

FIFO = BufferSpec("FIFO", 16)


@pytest.fixture(autouse=True)
def no_threads_are_left():
    """Whatever happens, everything of the coordinator's ends."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not [t for t in threading.enumerate() if t not in before and is_of_a_fit(t)], 5)


def is_of_a_fit(thread: threading.Thread) -> bool:
    return thread.name in ("listener", "connection", "parameter-server", "stream-control")


def online(engine, net, simulate, inputs, *, workers=1, loss=total, optimizer=COUNTING, **options):
    """Fit a network that counts, with what matters little; return the trainer and how it ended."""
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net, optimizer, loss)
    given = {"buffer": FIFO, "batch_size": 5, "num_simulators": 1, "merge_every_batches": 1, "record_every": 0.02}
    try:
        trainer.fit_online(simulate, inputs, **(given | options))
    except BaseException as error:
        return trainer, error
    return trainer, None


def counted(engine, net, simulate, inputs, *, workers=1, **options):
    """Return the trainer of a fit that goes well, and how often each sample was trained on."""
    trainer, error = online(engine, net, simulate, inputs, workers=workers, **options)
    if error is not None:
        raise error
    return trainer, counts(trainer.get_parameters(), workers)


def split(samples, size):
    return [range(start, min(samples, start + size)) for start in range(0, samples, size)]


# Simulations that fail


@pytest.mark.parametrize("workers", [1, 2])
def test_a_simulation_that_raises_once_runs_again(local, tmp_path, workers):
    trouble = Trouble(17, fail, tmp_path)
    with pytest.warns(UserWarning, match="1 of input range.10, 20. failed: ArithmeticError: .* .1 of 2."):
        trainer, trained = counted(
            local, Counter(40), Hots(40, trouble), split(40, 10), workers=workers, num_simulators=2
        )
    assert trouble.happened == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 4, "failed": 0}
    assert trainer.history[-1]["received"] == 40


def test_a_simulation_that_always_raises_is_left_out(local, tmp_path):
    trouble = Trouble(17, fail, tmp_path, times=100)
    with pytest.warns(UserWarning, match="(?s)simulation 1 of .* failed") as warned:
        trainer, trained = counted(
            local, Counter(40), Hots(40, trouble), split(40, 10), num_simulators=2, simulation_retries=1
        )
    assert trouble.happened == 2
    assert trained == [1] * 17 + [0] * 3 + [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 3, "failed": 1}
    messages = [str(warning.message) for warning in warned]
    assert len(messages) == 2
    assert "is left out" in messages[1]
    assert "in fail" in messages[1]


def test_where_all_simulations_fail_it_is_an_error(local, tmp_path):
    trouble = Trouble(0, fail, tmp_path, times=100)
    with pytest.warns(UserWarning, match="simulation .* failed"):
        trainer, error = online(local, Counter(5), Hots(5, trouble), [[0]] * 4, simulation_retries=1)
    assert isinstance(error, SimulationError)
    assert re.search(r"simulation 0 of input \[0\] failed: ArithmeticError: the solver met a singular", str(error))
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "in fail" in str(error.__cause__)
    assert trouble.happened >= 2
    assert counts(trainer.get_parameters(), 1) == [0] * 5


def test_endless_simulations_that_all_fail_are_an_error(local, tmp_path, monkeypatch):
    monkeypatch.setattr("compss_train.online.simulations.REPORT_SECONDS", 0.3)
    trouble = Trouble(0, fail, tmp_path, times=10**6)
    inputs = itertools.repeat([0])
    with pytest.warns(UserWarning, match="simulation .* failed"):
        _, error = online(local, Counter(5), Hots(5, trouble), inputs, simulation_retries=0)
    assert isinstance(error, SimulationError)


def rubbish(which):
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


SAID = {
    "no tuple": "",
    "nothing": "",
    "too many": "a tuple of 4",
    "empty": "a tuple of 0",
    "alone": "a sample of",
    "objects": "",
    "ragged": "",
    "shape": "a worker has refused a sample",
    "dtype": "a worker has refused a sample",
    "big-endian": "",
    "words": "",
    "step": "first",
}


@pytest.mark.parametrize("which", SAID)
def test_rubbish_is_left_out_with_a_warning(local, which):
    def simulate(what):
        return rubbish(what) if isinstance(what, str) else Hots(5)(what)

    with pytest.warns(UserWarning, match=rf"(?s)simulation 0 of input '{which}' failed: .*{SAID[which]}"):
        trainer, trained = counted(local, Counter(5), simulate, [which, [3, 4]], simulation_retries=0)
    assert trained[3:] == [1, 1]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 1, "failed": 1}


def test_what_a_simulation_gave_before_it_is_left_out_is_trained_on(local, tmp_path):
    """Some of it still waits in sockets when the coordinator knows that nothing more will come."""

    def simulate(_):
        yield from Hots(12)(range(12))
        threading.Timer(0.5, (tmp_path / "failed").touch).start()
        fail()

    net = Counter(12, Touch(0, until=tmp_path / "failed"))
    with pytest.warns(UserWarning, match="(?s)singular matrix, 1 times; it is left out"):
        _, trained = counted(local, net, simulate, [0], simulation_retries=0, buffer=BufferSpec("FIFO", 5))
    assert trained == [1] * 12


def no_generator(_):
    return None


class Unpicklable:
    """Can be pickled, but not read again elsewhere."""

    def __reduce__(self):
        return (int, ("no number",))


@pytest.mark.parametrize(
    ("simulate", "value", "said"),
    [(no_generator, 0, "not iterable"), (Hots(5), Unpicklable(), "no number"), (sys.exit, "code 7", "SystemExit")],
    ids=["nothing to iterate over", "input", "exit"],
)
def test_simulations_that_cannot_begin_are_told_of(local, simulate, value, said):
    with pytest.warns(UserWarning, match="left out"):
        _, error = online(local, Counter(5), simulate, [value], simulation_retries=0)
    assert isinstance(error, SimulationError)
    assert said in str(error)


def test_an_input_that_cannot_be_pickled_is_the_callers_error(local):
    _, error = online(local, Counter(5), Hots(5), [threading.Lock()])
    assert isinstance(error, TypeError)
    assert "pickle" in str(error)
    assert local.ends


def wait_for_ever() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.01)


def compute_for_ever() -> None:
    """In C, without letting any other thread run."""
    re.match(r"(a|a)*b", "a" * 34)


@pytest.mark.parametrize(("hang", "said"), [(wait_for_ever, "in wait_for_ever"), (compute_for_ever, "")])
def test_a_simulation_that_hangs_runs_again(local, tmp_path, hang, said):
    trouble = Trouble(7, hang, tmp_path)
    started = time.monotonic()
    with pytest.warns(UserWarning, match="(?s)simulation 0 .* runs again") as warned:
        trainer, trained = counted(
            local, Counter(20), Hots(20, trouble), split(20, 10), simulation_timeout=0.5, num_simulators=2
        )
    assert said in str(warned[0].message)
    assert trouble.happened == 1
    assert trained == [1] * 20
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}
    assert time.monotonic() - started < 15


def test_waiting_for_the_buffer_is_not_hanging(local, tmp_path):
    """Training begins long after a sample should have come, and samples are large."""
    threading.Timer(1.0, (tmp_path / "go").touch).start()

    def simulate(numbers):
        for x, _ in Hots(50)(numbers):
            yield x, np.zeros(250_000, np.float32)

    net = Counter(50, Touch(0, until=tmp_path / "go"))
    options = {"simulation_timeout": 0.3, "buffer": BufferSpec("FIFO", 5)}
    _, trained = counted(local, net, simulate, [range(50)], **options)
    assert trained == [1] * 50


def test_a_simulation_whose_process_is_killed_runs_again(local, tmp_path):
    """The second run sends all that is lacking while samples of the first one still wait in sockets."""
    trouble = Trouble(28, kill, tmp_path)
    net = Counter(40, Touch(10, until=tmp_path / "again"))
    simulate = Hots(40, All((trouble, Touch(29, tmp_path / "again"))))
    with pytest.warns(UserWarning, match="simulation 1 .* failed: its process died; it runs again"):
        trainer, trained = counted(local, net, simulate, split(40, 20), buffer=BufferSpec("FIFO", 10))
    assert trouble.happened == 1
    assert trained == [1] * 40
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


def test_a_simulation_that_always_kills_its_process_is_left_out(local, tmp_path):
    """It has given samples, so that this is no reason to believe that all will fail."""
    trouble = Trouble(7, kill, tmp_path, times=100)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer, trained = counted(local, Counter(20), Hots(20, trouble), split(20, 10), simulation_retries=1)
    assert ["left out" in str(warning.message) for warning in warned] == [False, True]
    assert trained == [1] * 7 + [0] * 3 + [1] * 10
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 1, "failed": 1}


@pytest.mark.timeout(15)
def test_a_reservoir_of_pairs_that_is_too_small_is_an_error_not_a_hang(local, tmp_path):
    """It holds the first steps of two simulations, of which none can be paired, and a third one comes."""
    buffer = BufferSpec("SimPairedReservoir", 2, threshold=0, sweep_size=3, nb_time_steps=2)
    options = {"buffer": buffer, "pairing": early_and_late, "num_simulators": 3, "batch_size": 2}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _, error = online(local, nn.Linear(1, 1), Together(tmp_path), range(3), simulation_retries=0, **options)
    said = " ".join([str(error), *(str(warning.message) for warning in warned)])
    assert "all 2 samples held are of different simulations" in said


@dataclass(frozen=True)
class Together:
    """Gives a second step when three first ones have been sent."""

    folder: Path

    def __call__(self, number):
        for step in range(2):
            yield step, np.float32([number]), np.float32([0])
            tally(self.folder / "sent")
            until = time.monotonic() + 10
            while tallied(self.folder / "sent") < 3 and time.monotonic() < until:
                time.sleep(0.005)


def early_and_late(early, late):
    return early.data


# Workers that die


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
        if os.getpid() != self.parent and not tally(self.flag):
            kill()
        return super().state_dict()


@pytest.mark.timeout(20)
def test_a_worker_that_dies_when_all_is_done_does_not_hang_the_fit(local, tmp_path):
    optimizer = partial(DyingAtTheEnd, flag=tmp_path / "died", parent=os.getpid())
    options = {"optimizer": optimizer, "checkpoint_every": None}
    _, trained = counted(local, Counter(20), Hots(20), [range(20)], **options)
    assert tallied(tmp_path / "died") >= 1
    assert min(trained) >= 1


# Exceptions


class Particular(Counter):
    def __init__(self, samples, number, pid=None):
        super().__init__(samples)
        self.number, self.pid = number, pid

    def forward(self, x):
        if self.number in x.argmax(1):
            raise LookupError(f"not {self.number}, please")
        return super().forward(x)

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.pid not in (None, os.getpid()):
            raise LookupError("this network is no traveller")


def test_what_the_network_raises_ends_the_fit_at_once(local):
    ends, started = local.ends, time.monotonic()
    _, error = online(local, Particular(20, 7), Hots(20), itertools.repeat(range(20)), workers=2)
    assert isinstance(error, LookupError)
    assert "not 7, please" in str(error)
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "in forward" in str(error.__cause__)
    assert any("batch of x with shape (5, 20)" in note for note in error.__notes__)
    assert time.monotonic() - started < 15
    assert local.ends == ends + 1


@pytest.mark.timeout(15)
def test_a_network_that_cannot_be_read_by_workers_ends_the_fit_at_once(local):
    _, error = online(local, Particular(20, 7, os.getpid()), Hots(20), [range(20)])
    assert isinstance(error, LookupError)
    assert "no traveller" in str(error)


@pytest.mark.parametrize("merge_every", [1, 1000])
@pytest.mark.parametrize("record_every", [1e-5, 1.0])
@pytest.mark.parametrize("bad", [7, 18])
def test_a_loss_that_turns_nan_is_an_error(local, merge_every, record_every, bad):
    x, y = classification(samples=20)
    x[bad] = np.nan
    options = {"record_every": record_every, "merge_every_batches": merge_every}
    trainer, error = online(local, mlp(), rows_of, [(x, y)], loss="cross_entropy", optimizer=SGD, **options)
    assert isinstance(error, DivergedError)
    assert "became NaN or infinite" in str(error)
    assert all(np.isfinite(array).all() for array in trainer.get_parameters().values())


class Failing(Callback):
    def on_round_end(self, trainer, record):
        raise LookupError("the disk is full")


def test_an_exception_in_a_callback_ends_everything(local, tmp_path):
    simulate = Hots(20, lambda _: tally(tmp_path / "produced"))
    trainer, error = online(local, Counter(20), simulate, itertools.repeat(range(20)), callbacks=[Failing()])
    assert isinstance(error, LookupError)
    assert_silence(tmp_path / "produced")
    assert sum(counts(trainer.get_parameters(), 1)) > 0  # what was merged until then


def assert_silence(path):
    """Nobody produces any more; a simulation may have one sample that it was about to send."""
    before = -1
    until = time.monotonic() + 5
    while before != (before := tallied(path)):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_an_exception_in_the_inputs_ends_everything(local, tmp_path):
    def inputs():
        yield range(20)
        raise LookupError("no more parameters")

    _, error = online(local, Counter(20), Hots(20), inputs())
    assert isinstance(error, LookupError)


def test_the_trainer_can_be_used_after_an_exception(local):
    trainer, error = online(local, Counter(20), Hots(20), [range(20)], callbacks=[Failing()])
    assert isinstance(error, LookupError)
    before = np.array(counts(trainer.get_parameters(), 1))
    trainer.fit_online(Hots(20), [range(20)], buffer=FIFO, batch_size=5, num_simulators=1, merge_every_batches=1)
    assert (np.array(counts(trainer.get_parameters(), 1)) - before == 1).all()


def test_a_port_in_use_is_an_error(local):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        _, error = online(
            local, Counter(20), None, (), num_simulators=0, senders=1, address=address, token="secret"
        )
    assert isinstance(error, OSError)
    assert "cannot listen at 127.0.0.1" in str(error)


def test_a_simulation_that_goes_on_after_the_end_is_ended(local, tmp_path):
    """It computes for long when the workers have what they want; its process is there for the next fit."""
    waiting = Hots(20, Touch(10, until=tmp_path / "never"))
    _, trained = counted(local, Counter(20), waiting, [range(20)], max_batches=2, num_simulators=3)
    assert trained == [1] * 10 + [0] * 10
    started = time.monotonic()
    _, trained = counted(local, Counter(20), Hots(20), split(20, 5), num_simulators=3)
    assert trained == [1] * 20
    assert time.monotonic() - started < 10


# Senders


def sending(address, numbers, samples, then=None, **options):
    """Send samples in a thread; return the thread and what was raised in it."""
    errors = []

    def send():
        try:
            with SampleSender(address, "secret", timeout=20, **options) as sender:
                for number in numbers:
                    sender.send(one_hot(number, samples), 0.0)
        except BaseException as error:
            errors.append(error)
        if then is not None:
            then()

    thread = threading.Thread(target=send)
    thread.start()
    return thread, errors


def one_sender(port):
    address = f"tcp://127.0.0.1:{port}"
    return address, {"num_simulators": 0, "senders": 1, "address": address, "token": "secret"}


def test_a_sender_that_fails_may_come_again(local, tmp_path):
    def numbers():
        yield from range(7)
        raise LookupError("out of licences")

    address, options = one_sender(free_port())
    later = []

    def again():
        later.append(sending(address, range(20), 20, name="solver"))

    first, errors = sending(address, numbers(), 20, again, name="solver")
    with pytest.warns(UserWarning, match="(?s)sender 'solver' has failed, and is waited for: .*out of licences"):
        _, trained = counted(local, Counter(20), None, (), workers=2, **options)
    for thread, raised in [(first, errors), *later]:
        thread.join(20)
        assert [type(error) for error in raised] == ([LookupError] if raised is errors else [])
    assert trained == [1] * 20


def test_what_a_worker_loses_of_a_sender_is_told(local, tmp_path):
    """The sender has ended long before, believing that all was well."""
    address, options = one_sender(free_port())
    trouble = Trouble(3, kill, tmp_path, after=tmp_path / "sent")
    thread, errors = sending(address, range(10), 20, (tmp_path / "sent").touch)
    with pytest.warns(UserWarning, match="samples"):
        counted(local, Counter(20, trouble), None, (), **options)
    thread.join(20)
    assert errors == []
    assert trouble.happened == 1


# Ctrl-C and other ends

SCRIPT = textwrap.dedent(
    """
    import pathlib, sys, time
    import numpy as np
    from torch import nn
    from compss_train import BufferSpec, DistributedTrainer

    class Net(nn.Linear):
        def forward(self, x):
            (folder / "training").touch()
            return super().forward(x)

    def simulate(_):
        for step in range(20):
            yield np.ones(4, np.float32), np.float32(0)
        (folder / "sleeping").touch()
        time.sleep(1000)

    folder = pathlib.Path(sys.argv[1])
    trainer = DistributedTrainer(1, engine="local", seed=0)
    trainer.build(Net(4, 1), {"optimizer": "adam", "lr": 0.01}, lambda output, target: output.mean())
    trainer.fit_online(
        simulate, range(2), buffer=BufferSpec("Reservoir", 50, threshold=5), batch_size=4, num_simulators=1,
        merge_every_batches=5, checkpoint_every=0.1,
    )
    """
)


@pytest.fixture
def script(tmp_path):
    """A program that trains, in a session of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_until(lambda: (tmp_path / "training").exists() and (tmp_path / "sleeping").exists(), 60)
    wait_until(lambda: list(tmp_path.glob("compss_train-online-*/0.saved")), 20)
    yield process
    if session(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_ctrl_c_ends_everything_within_three_seconds(script, tmp_path):
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does
    took = wait_until(lambda: script.poll() is not None and not session(script.pid), 20)
    out, err = script.communicate()
    assert took < 3
    assert script.returncode in (130, -signal.SIGINT)
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out == ""
    assert leftovers(script.pid) == []
    assert list(tmp_path.glob("compss_train-online-*")) == []
