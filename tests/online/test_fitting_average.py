"""fit_online that keeps an average by steps, against a plain loop with an ``AveragedModel``."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from compss_train import BufferSpec, Gradients, Merge
from compss_train.callbacks import Callback, EarlyStopping
from compss_train.data.order import buffer_seed
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.plain_loop import plain_steps
from tests.online.fits import batches_of, build_trainer, fit_online
from tests.online.simulations import simulate_rows

DECAY = 0.9
AVERAGE = {"averaging": DECAY, "averaging_unit": "steps"}
X, Y = classification(samples=60)
ROWS = [(X[:20], Y[:20]), (X[20:33], Y[20:33]), (X[33:], Y[33:])]


def without_dropout():
    net = awkward_net()
    net[3].p = 0.0
    return net


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def averaged_model(net):
    return AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(DECAY))


def arrays_of(net):
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("every", [1, 4])
def test_the_average_of_one_worker_is_torchs(local, every, accumulate):
    """Merges apply accumulated gradients."""
    if every % accumulate:
        every = 2
    average = averaged_model(without_dropout())
    batches = [*batches_of(7, X, Y)]
    steps = [batches[first : first + accumulate] for first in range(0, len(batches), accumulate)]
    plain_steps(
        without_dropout(),
        momentum,
        steps if accumulate > 1 else batches,
        3,
        after=average.update_parameters,
        accumulate=accumulate,
    )
    gradients = Gradients(accumulate=accumulate)
    trainer = build_trainer(local, 1, without_dropout(), SGD, gradients=gradients)
    fit_online(trainer, simulate_rows, ROWS, every=every, validation_data=(X, Y), **AVERAGE)
    assert_same_bits(arrays_of(trainer.model(averaged=True)), arrays_of(average.module))
    last = trainer.history[-1]
    trainer.set_parameters(trainer.get_parameters(averaged=True))
    values = trainer.evaluate(X, Y)
    assert {name: last[f"val_averaged_{name}"] for name in values} == values
    assert last["val_loss"] != last["val_averaged_loss"]


def test_the_next_fit_continues_the_average_and_one_without_ends_it(local):
    average = averaged_model(without_dropout())
    twice = [*batches_of(7, X, Y)] * 2
    plain_steps(without_dropout(), momentum, twice, 3, after=average.update_parameters)
    trainer = build_trainer(local, 1, without_dropout(), SGD)
    for _ in range(2):
        fit_online(trainer, simulate_rows, ROWS, **AVERAGE)
    assert_same_bits(trainer.get_parameters(averaged=True), arrays_of(average.module))
    fit_online(trainer, simulate_rows, ROWS)
    with pytest.raises(ValueError, match="the last fit kept no average"):
        trainer.model(averaged=True)


def drawn_batches(buffer, worker):
    """Iterate over the batches of a worker that begins to train when all samples have arrived."""
    numbers = np.arange(worker, len(X), 2)
    held = buffer.make(7, buffer_seed(3, 0, worker), pin_memory=False)
    held.put_many(numbers)
    held.signal_reception_over()
    while len(held):
        drawn = np.asarray(held.get_batch(7))
        yield torch.from_numpy(X[drawn]), torch.from_numpy(Y[drawn])


def test_averages_of_workers_merge_as_their_parameters_do(local):
    """Each merges once: both train until the end when all samples have arrived."""
    net = mlp()
    buffer = BufferSpec("FIRO", 60, threshold=60)
    start = copy.deepcopy(arrays_of(net))
    trained = []
    averages = []
    for worker in range(2):
        average = averaged_model(net)
        batches = drawn_batches(buffer, worker)
        trained.append(plain_steps(net, momentum, batches, 3, after=average.update_parameters))
        averages.append(arrays_of(average.module))
    trainer = build_trainer(local, 2, net, SGD)
    with pytest.warns(UserWarning, match="fewer than the threshold"):
        ours = fit_online(trainer, simulate_rows, [(X, Y)], buffer=buffer, every=100, **AVERAGE)
    for merged, workers in ((ours, trained), (trainer.get_parameters(averaged=True), averages)):
        expected = {}
        for name, array in start.items():
            changes = [worker[name].astype(float) - array for worker in workers]
            expected[name] = (array + 0.5 * changes[0] + 0.5 * changes[1]).astype(array.dtype)
        assert_same_bits(merged, expected)


def test_tied_and_frozen_parameters_are_averaged_as_they_are(local):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.last = mlp()
            self.first.bias.requires_grad_(False)

        def forward(self, x):
            return self.last(self.second(self.first(x)))

    torch.manual_seed(0)
    net = Tied()
    average = averaged_model(net)
    batches = batches_of(7, X, Y)
    plain_steps(net, momentum, batches, 3, after=average.update_parameters)
    trainer = build_trainer(local, 1, net, SGD)
    fit_online(trainer, simulate_rows, ROWS, every=2, **AVERAGE)
    assert_same_bits(trainer.get_parameters(averaged=True), arrays_of(average.module))


class LooksAtAverage(Callback):
    def __init__(self):
        self.seen = 0

    def on_round_end(self, trainer, record):
        if record["batches"]:
            assert record["val_averaged_loss"] > 0
            assert trainer.model(averaged=True)
            self.seen += 1


def test_callbacks_see_the_average_while_it_is_trained(local):
    looks = LooksAtAverage()
    stopping = EarlyStopping("val_averaged_loss", patience=1000)
    trainer = build_trainer(local, 1, mlp(), SGD)
    fit_online(
        trainer,
        simulate_rows,
        ROWS,
        validation_data=(X, Y),
        callbacks=[looks, stopping],
        **AVERAGE,
    )
    assert looks.seen


def test_averages_by_merges_and_fits_through_a_server_are_refused():
    with pytest.raises(ValueError, match=r"give averaging_unit='steps'"):
        Merge("parameter_server", averaging="ema")
    trainer = build_trainer("serial", 1, mlp(), SGD)
    with pytest.raises(ValueError, match=r"averaging=0.9 .* is for fit_online"):
        trainer.fit(X, Y, num_epochs=1, batch_size=7, merge=Merge("parameter_server", **AVERAGE))
