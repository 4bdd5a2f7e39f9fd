"""fit_online: exceptions, failing senders, Ctrl-C."""

import itertools

import numpy as np
import pytest
from torch import nn

from compss_train import DivergedError, SampleSender, Simulations
from compss_train.callbacks import Callback
from compss_train.exceptions import WorkerTraceback
from tests.buffers.kinds import Thread
from tests.helpers.models import SGD, classification, mlp
from tests.helpers.waiting import settled
from tests.online.fits import FIFO, fit_and_count, run_fit, split_range
from tests.online.simulations import (
    CountingNet,
    OneHotSimulation,
    TouchFile,
    free_port,
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
    _, error = run_fit(
        local, RaisingNet(20, 7), OneHotSimulation(20), itertools.repeat(range(20)), workers=2
    )
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
    trainer, error = run_fit(
        local, mlp(), simulate_rows, [(x, y)], loss="cross_entropy", optimizer=SGD, **options
    )
    assert isinstance(error, DivergedError)
    assert "became nan" in str(error).lower()
    said = f"x of time step {bad} of simulation 0 of input (array([["
    assert any(
        note.startswith(said) and note.endswith(" has NaN or infinite values.")
        for note in error.__notes__
    )
    assert error.sample == (0, bad, "x")
    assert all(np.isfinite(array).all() for array in trainer.get_parameters().values())


def test_a_nan_of_a_sender_has_its_name(local):
    given = {"senders": 1, "address": f"tcp://127.0.0.1:{free_port()}", "token": "ours alone"}

    def send():
        with SampleSender(given["address"], given["token"], "solver 1") as sender:
            for step in range(5):
                sender.send(
                    np.float32([0, step]),
                    np.float32([np.inf if step == 3 else step]),
                    step=2 * step,
                )

    sending = Thread(send)
    # Trains when the sender is done, which would otherwise wait for the fit to be started again.
    _, error = run_fit(
        local, nn.Linear(2, 1), None, (), loss="mse", optimizer=SGD, batch_size=6, **given
    )
    sending.result()
    assert isinstance(error, DivergedError)
    assert "y of time step 6 of sender 'solver 1' has NaN or infinite values." in error.__notes__


class FailingCallback(Callback):
    def on_round_end(self, trainer, record):
        raise LookupError("the disk is full")


def test_an_exception_in_a_callback_ends_everything_and_leaves_a_usable_trainer(local, tmp_path):
    simulate = OneHotSimulation(20, lambda _: increment(tmp_path / "produced"))
    trainer, error = run_fit(
        local, CountingNet(20), simulate, itertools.repeat(range(20)), callbacks=[FailingCallback()]
    )
    assert isinstance(error, LookupError)
    # No more samples but one that was about to be sent.
    settled(lambda: read_count(tmp_path / "produced"))
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
    _, trained = fit_and_count(
        local, CountingNet(20), OneHotSimulation(20), split_range(20, 5), count=3
    )
    assert trained == [1] * 20
