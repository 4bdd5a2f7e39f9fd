"""Variables of the program that functions change in tasks: who reads them later is warned."""

import warnings

import pytest
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer
from tests.helpers.models import SGD
from tests.helpers.small_fits import X, Y
from tests.online.fits import fit_online
from tests.online.simulations import numbered_rows


def fit(trainer, **options):
    trainer.fit(X, Y, **{"num_epochs": 2, "batch_size": 10, "progress": False, **options})


def built(engine="serial", loss="cross_entropy", **options):
    torch.manual_seed(0)
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(nn.Linear(6, 3), SGD, loss, **options)
    return trainer


def loss_of(net, batch):
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


@pytest.mark.parametrize("kind", [float, torch.Tensor])
def test_a_list_of_the_function_that_calls_the_fit(engine, kind):
    losses = []

    def step(net, batch, context):
        loss = loss_of(net, batch)
        losses.append(loss.item() if kind is float else loss.detach())
        return loss

    with pytest.warns(UserWarning, match="training_step= appends to the list 'losses' of") as told:
        fit(built(engine, training_step=step))
    assert len(told) == 1  # once a fit
    assert not losses


def test_a_number_of_the_function_that_calls_the_fit(engine):
    total = 0.0

    def step(net, batch, context):
        nonlocal total
        loss = loss_of(net, batch)
        total += loss.item()
        return loss

    with pytest.warns(UserWarning, match="training_step= changes the variable 'total' of") as told:
        fit(built(engine, training_step=step))
    assert len(told) == 1
    assert total == 0


def test_in_a_fit_with_simulations(shared_local):
    losses = []
    pairs = 0

    def step(net, batch, context):
        losses.append(loss_of(net, batch).item())
        return loss_of(net, batch)

    def pairing(earlier, later):
        nonlocal pairs
        pairs += 1
        return earlier.data[0], later.data[1]

    trainer = built(shared_local, None, training_step=step)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=2, sweep_size=4, nb_time_steps=5)
    inputs = [(X[start : start + 5], Y[start : start + 5]) for start in range(0, 20, 5)]
    with pytest.warns(UserWarning, match="which stays as it is") as told:
        fit_online(trainer, numbered_rows, inputs, pairing=pairing, buffer=buffer, batch_size=4)
    texts = sorted(f"{warning.message}" for warning in told)
    assert [text.split(" of ")[0] for text in texts] == [
        "pairing= changes the variable 'pairs'",
        "training_step= appends to the list 'losses'",
    ]
    assert not losses
    assert pairs == 0


def test_one_of_a_loss_that_an_outer_function_has():
    seen = [0.5]

    def loss(output, target):
        seen.append(1)
        return nn.functional.cross_entropy(output, target) * sum(seen)

    def inner():
        fit(built(loss=loss))

    with pytest.warns(UserWarning, match="loss= appends to the list 'seen' of test_one_of_a_loss"):
        inner()
    assert seen == [0.5]


def remembering():
    """Return a step that keeps a list for itself."""
    losses = []

    def step(net, batch, context):
        losses.append(loss_of(net, batch).item())
        return loss_of(net, batch) * len(losses)

    return step


def test_lists_that_no_caller_can_read_are_no_reason_to_warn():
    fit(built(training_step=remembering()))


def test_other_variables_of_the_caller_are_no_reason_to_warn():
    """A hook's outputs, numbers that functions share, and a list that is read."""
    features = {}
    outputs = []
    losses = [1.0, 2.0]

    def loss(output, target):
        features["output"] = output.detach()
        outputs[:] = [output]
        return nn.functional.cross_entropy(output, target) * losses[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(built(loss=loss), num_epochs=1)
