"""What objects keep in an online fit: attributes and buffers as in a plain loop, but no globals."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BufferSpec, Merge, Simulations
from compss_train.callbacks import Callback, Checkpoint
from compss_train.engines.calls import intra_op_threads
from tests.helpers.models import SGD, assert_same_bits, classification, state_arrays
from tests.helpers.waiting import pause
from tests.online.fits import DEFAULTS, batches_of, build_trainer, fit_online
from tests.online.simulations import numbered_rows, simulate_rows, wait_for_file
from tests.training.test_model_state import ActNorm
from tests.worker.merging.test_buffers import Keeping

COUNT = 0
LOSSES = []


def counts(net, batch, context):
    global COUNT
    COUNT += 1
    return plain_step(net, batch, context)


def lists(net, batch, context):
    loss = plain_step(net, batch, context)
    LOSSES.append(loss.item())
    return loss


def plain_step(net, batch, context):
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


@pytest.mark.parametrize(("step", "name"), [(counts, "COUNT"), (lists, "LOSSES")])
def test_globals_that_tasks_change(local, raises, step, name):
    x, y = classification(samples=40)
    trainer = build_trainer(local, 1, nn.Linear(6, 3), SGD, None, training_step=step)
    with raises(TypeError, name):
        fit_online(trainer, simulate_rows, [(x, y)])


def test_globals_that_one_of_two_workers_changes(local):
    x, y = classification(samples=40)
    trainer = build_trainer(local, 2, nn.Linear(6, 3), SGD, None, training_step=counts)
    with pytest.raises(TypeError, match="the global variable 'COUNT', which counts uses"):
        fit_online(trainer, simulate_rows, [(x, y)])


class Pairing:
    """Counts its batches, in an attribute or in a global variable."""

    def __init__(self, kind):
        self.kind = kind
        self.batches = 0

    def __call__(self, earlier, later):
        global COUNT
        if self.kind == "global":
            COUNT += 1
        self.batches += 1
        x, _ = later.data
        return x, earlier.data[0] * self.batches


def paired(trainer, kind="attribute", **options):
    buffer = BufferSpec("SimPairedReservoir", 70, threshold=2, sweep_size=9, nb_time_steps=7)
    inputs = [(X[start : start + 7], Y[start : start + 7]) for start in range(0, 63, 7)]
    options = {**DEFAULTS, "batch_size": 3, "buffer": buffer, **options}
    simulations = Simulations(numbered_rows, inputs, pairing=Pairing(kind))
    trainer.fit_online(simulations, progress=False, **options)
    return trainer


def test_globals_that_a_pairing_changes(local, raises):
    trainer = build_trainer(local, 1, nn.Linear(4, 4), SGD, nn.MSELoss())
    with raises(TypeError, "COUNT"):
        paired(trainer, "global")


def test_each_worker_has_its_own_copy_of_a_pairing(local):
    trainer = paired(build_trainer(local, 2, nn.Linear(4, 4), SGD, nn.MSELoss()))
    workers = trainer.snapshot().workers
    assert [state.attributes["pairing.batches"] for state in workers] == [
        state.batches for state in workers
    ]
    # Kept by the next fit, too; those without pairs do not know it.
    paired(trainer)
    workers = trainer.snapshot().workers
    assert [state.attributes["pairing.batches"] for state in workers] == [
        state.batches for state in workers
    ]
    trainer.fit(X, Y, num_epochs=1, batch_size=7, progress=False)


def test_globals_that_are_read(local):
    x, y = classification(samples=40)
    trainer = build_trainer(local, 1, nn.Linear(6, 3), SGD, None, training_step=plain_step)
    fit_online(trainer, simulate_rows, [(x, y)])


RULES = {"0.queue": "worker", "0.next": "worker", "0.stamp": "worker", "*.peak": "max"}
X = np.random.default_rng(0).normal(size=(63, 4)).astype(np.float32)
Y = X + 2


class StateNet(nn.Sequential):
    """Keeps buffers of several kinds, and what it has seen in attributes."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(Keeping(), ActNorm(), nn.Linear(4, 4))


def fitted(local, workers=1, *, net=None, trainer=None, **options):
    if trainer is None:
        trainer = build_trainer(local, workers, net or StateNet(), SGD, nn.MSELoss())
    merge = Merge(every=options.pop("every", 1), buffers=RULES)
    simulations = Simulations(simulate_rows, [(X, Y)])
    options = {**DEFAULTS, "batch_size": 7, **options}
    trainer.fit_online(simulations, merge=merge, progress=False, **options)
    return trainer


def looped(times=1):
    """Return a network after a plain loop, whose attributes are those of the loop, too."""
    net = StateNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with intra_op_threads(1):
        for _ in range(times):
            for x, y in batches_of(7, X, Y):
                optimizer.zero_grad()
                nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
    return net


def assert_like(trainer, net):
    assert_same_bits(trainer.get_parameters(), state_arrays(net))
    model = trainer.model()
    assert model[1].seen == net[1].seen
    assert model[1].begun
    assert model[1].batches.item() == net[1].batches.item()


@pytest.mark.parametrize("every", [1, 4])
def test_one_worker_keeps_what_a_plain_loop_keeps(local, every):
    trainer = fitted(local, every=every)
    assert_like(trainer, looped())
    fitted(local, every=every, trainer=trainer)
    assert_like(trainer, looped(2))


def test_each_of_two_workers_has_buffers_of_its_own(local):
    trainer = fitted(local, 2)
    parameters = trainer.get_parameters()
    states = [state.module_buffers for state in trainer.snapshot().workers]
    for name in ("queue", "next", "stamp"):
        assert parameters[f"0.{name}"].tobytes() == states[0][f"0.{name}"].numpy().tobytes()
    batches = [state.batches for state in trainer.snapshot().workers]
    assert [state["0.next"].item() for state in states] == batches
    assert not torch.equal(states[0]["0.queue"], states[1]["0.queue"])
    np.testing.assert_array_equal(parameters["0.peak"], X.max(0))
    assert trainer.model()[1].seen == {"batches": batches[0]}


def test_validation_sees_the_state_of_worker_0(local):
    trainer = fitted(local, validation_data=(X, Y))
    with torch.no_grad():
        loss = nn.functional.mse_loss(trainer.model()(torch.from_numpy(X)), torch.from_numpy(Y))
    assert trainer.history[-1]["val_loss"] == pytest.approx(loss.item(), rel=1e-5)


class StopAfterSave(Callback):
    """Stops a fit once it has a save."""

    def on_round_end(self, trainer, record):
        if trainer.state_id is not None and trainer.stopping is None:
            trainer.stop("enough")


@dataclass(frozen=True)
class HeldRows:
    """Sends rows slowly, and the second half once the fit that is to be stopped has ended."""

    ended: Path

    def __call__(self, rows):
        for number, row in enumerate(simulate_rows(rows)):
            pause(0.01)
            if number >= len(X) // 2:
                wait_for_file(self.ended)
            yield row


def test_a_resumed_fit_goes_on_with_it(local, tmp_path):
    options = {"checkpoint_every": 0.05, "record_every": 0.02}
    trainer = build_trainer(local, 1, StateNet(), SGD, nn.MSELoss())
    ended = tmp_path / "ended"
    simulations = Simulations(HeldRows(ended), [(X, Y)])
    merge = Merge(buffers=RULES)
    more = {**DEFAULTS, "batch_size": 7, **options, "merge": merge, "progress": False}
    callbacks = [Checkpoint(tmp_path / "saves"), StopAfterSave()]
    trainer.fit_online(simulations, callbacks=callbacks, **more)
    assert trainer.stopped == "enough"
    ended.touch()
    resumed = build_trainer(local, 1, StateNet(), SGD, nn.MSELoss())
    resumed.fit_online(simulations, resume=tmp_path / "saves", **more)
    assert_like(resumed, looped())
