"""The outer optimizer, averaged optimizer states, the average of merged parameters, the agreement
of workers.
"""

import copy
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from compss_train import BlockedTensor, Gradients, Merge
from compss_train.callbacks import Callback
from compss_train.engines.calls import intra_op_threads
from compss_train.model.parameters import load_into
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import PLAIN_SGD, STILL, X, Y, fit, fitted, trainer_of
from tests.helpers.tolerances import sgd_error

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
MEAN = {"optimizer": "sgd", "lr": 1.0}


class EveryRound(Callback):
    """Keeps the parameters of every round."""

    def __init__(self):
        self.parameters = []

    def on_round_end(self, trainer, record):
        self.parameters.append(trainer.get_parameters())


def rounds_of(workers=3, **options):
    """Return a trainer after a fit, and its parameters after every round."""
    trainer = trainer_of(workers=workers, optimizer=ADAM, net=awkward_net)
    rounds = EveryRound()
    fit(trainer, rounds, **options)
    return trainer, rounds.parameters


def test_one_worker_that_merges_every_batch_follows_the_textbook_formula():
    """v = 0.9 v + g, w = w - 0.7 (g + 0.9 v), with the worker's step as the gradient g = 0.1 ∇."""
    x, y = classification(samples=60)
    ours = fitted(
        "serial",
        1,
        *blocked(x, y, 6),
        num_epochs=2,
        batch_size=10,
        merge=Merge(unit="blocks", outer_optimizer=NESTEROV),
        **STILL,
    )
    net = mlp().double()
    weights = list(net.parameters())
    velocity = [0.0] * 4
    for _ in range(2):
        for batch in range(6):
            rows = slice(10 * batch, 10 * batch + 10)
            loss = nn.functional.cross_entropy(
                net(torch.from_numpy(x[rows]).double()), torch.from_numpy(y[rows])
            )
            gradients = [0.1 * gradient for gradient in torch.autograd.grad(loss, weights)]
            velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
            with torch.no_grad():
                for weight, g, v in zip(weights, gradients, velocity, strict=True):
                    weight -= 0.7 * (g + 0.9 * v)
    expected = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    assert_close(
        ours, expected, sgd_error(np.float32, 12, 0.1 * 0.7 * 1.9, samples=10, momentum=0.9)
    )


def averaged(trainer):
    return {
        name: tensor.numpy() for name, tensor in trainer.model(averaged=True).state_dict().items()
    }


@pytest.mark.parametrize(
    ("optimizer", "make"), [(SGD, torch.optim.SGD), (ADAM, torch.optim.Adam)], ids=str
)
def test_averaged_optimizer_states_are_those_of_a_plain_loop(optimizer, make):
    """Two workers with blocks of 12 and 18 samples, 3 and 5 batches: two copies trained by torch
    and averaged.
    """
    x, y = classification(samples=30)
    cuts = [slice(0, 12), slice(12, 30)]
    blocks = [BlockedTensor([[part[cut]] for cut in cuts]) for part in (x, y)]
    ours = fitted(
        "serial",
        2,
        *blocks,
        optimizer=optimizer,
        num_epochs=3,
        batch_size=4,
        merge=Merge(optimizer_state="average"),
        **STILL,
    )
    options = {name: value for name, value in optimizer.items() if name != "optimizer"}
    net = mlp()
    state = None
    for _ in range(3):
        nets, states = zip(
            *[_trained(net, state, make, options, x[cut], y[cut]) for cut in cuts], strict=True
        )
        with torch.no_grad():
            for own, *theirs in zip(
                net.parameters(), *(each.parameters() for each in nets), strict=True
            ):
                own.copy_(_mean(*theirs))
        state = copy.deepcopy(states[0])
        for number, values in state["state"].items():
            for name, value in values.items():
                value.copy_(_mean(value, states[1]["state"][number][name]))
    assert_same_bits(ours, {name: tensor.numpy() for name, tensor in net.state_dict().items()})


def _trained(net, state, make, options, x, y):
    own = copy.deepcopy(net)
    optimizer = make(own.parameters(), **options)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    with intra_op_threads(1):
        for rows in np.array_split(np.arange(len(x)), -(-len(x) // 4)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                own(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])
            ).backward()
            optimizer.step()
    return own, optimizer.state_dict()


def _mean(one, other):
    return ((one.double() * 12 + other.double() * 18) / 30).to(one.dtype)


@pytest.mark.parametrize(
    ("merge", "workers"),
    [("synchronous", 2), ("synchronous", 1), ("commutative", 1), ("parameter_server", 1)],
)
def test_a_fit_that_keeps_states_starts_from_averages(merge, workers):
    kept, once = (trainer_of(workers=workers, optimizer=SGD, net=mlp) for _ in range(2))
    fit(kept, num_epochs=1, merge=Merge(optimizer_state="average"))
    assert all(state.optimizer is None for state in kept.snapshot().workers)
    fit(kept, num_epochs=1, merge=merge)  # whose only round starts alike
    fit(once, num_epochs=2, merge=Merge(optimizer_state="average"))
    assert_same_bits(kept.get_parameters(), once.get_parameters())


def test_the_moving_average_is_that_of_the_rounds():
    trainer, rounds = rounds_of(merge=Merge(averaging=0.6), num_epochs=4, validation_data=(X, Y))
    expected = rounds[0]
    for parameters in rounds[1:]:
        expected = {
            name: np.asarray(0.6 * expected[name] + 0.4 * array).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in parameters.items()
        }
    assert_same_bits(averaged(trainer), expected)
    trainer.set_parameters(expected)
    values = trainer.evaluate(X, Y)
    last = trainer.history[-1]
    assert {name: last[f"val_averaged_{name}"] for name in values} == values
    assert last["val_loss"] != last["val_averaged_loss"]


STEPS = Merge(averaging=0.9, averaging_unit="steps")


def without_dropout():
    net = awkward_net()
    net[3].p = 0.0
    return net


@pytest.mark.parametrize("gradients", [None, Gradients(accumulate=2)])
def test_the_average_by_steps_of_one_worker_is_torchs(gradients):
    net = without_dropout()
    expected = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    options = {"accumulate": 1 if gradients is None else gradients.accumulate}
    plain_loop(
        net, OPTIMIZERS[0][1], X, Y, 4, 3, 3, seed=3, after=expected.update_parameters, **options
    )
    trainer = trainer_of(workers=1, optimizer=SGD, net=without_dropout, gradients=gradients)
    fit(trainer, data=blocked(X, Y, 4), num_batches_per_worker=3, merge=STEPS, **STILL)
    assert_same_bits(averaged(trainer), state_arrays(expected.module))


def test_workers_averages_by_steps_are_merged_and_continued():
    cuts = [slice(0, 24), slice(24, 57)]
    merged = mlp()
    average = None
    for _ in range(2):
        nets = []
        averages = []
        for cut in cuts:
            own = AveragedModel(
                merged if average is None else average, multi_avg_fn=get_ema_multi_avg_fn(0.9)
            )
            own.n_averaged += average is not None
            make = partial(torch.optim.SGD, lr=0.1)
            after = own.update_parameters
            nets.append(plain_loop(merged, make, X[cut], Y[cut], 1, 4, 1, seed=3, after=after))
            averages.append(state_arrays(own.module))
        merged = mlp()
        average = mlp()
        for net, (one, other) in ((merged, nets), (average, averages)):
            load_into(
                net,
                {
                    name: ((one[name].astype(float) * 24 + other[name].astype(float) * 33) / 57)
                    for name in one
                },
            )
    trainer = trainer_of(workers=2, optimizer=PLAIN_SGD, net=mlp)
    data = [BlockedTensor([[array[cut]] for cut in cuts]) for array in (X, Y)]
    ours = fit(
        trainer,
        data=data,
        num_batches_per_worker=4,
        num_epochs=2,
        merge=STEPS,
        **STILL,
        validation_data=(X, Y),
    )
    assert_same_bits(ours, state_arrays(merged))
    assert_same_bits(averaged(trainer), state_arrays(average))
    last = trainer.history[-1]
    trainer.set_parameters(averaged(trainer))
    values = trainer.evaluate(X, Y)
    assert {name: last[f"val_averaged_{name}"] for name in values} == values


def test_an_interrupted_fit_leaves_the_average_of_its_last_round():
    trainer = trainer_of()
    whole = trainer_of()
    fit(trainer, merge=Merge(averaging="ema"), num_epochs=2)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(3), merge=Merge(averaging="ema"), num_epochs=3)
    fit(whole, merge=Merge(averaging="ema"), num_epochs=3)
    assert_same_bits(averaged(trainer), averaged(whole))
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(4), num_epochs=2)
    with pytest.raises(
        ValueError, match=r'the last fit kept no average.*give fit merge=Merge\(averaging="ema"\)'
    ):
        trainer.model(averaged=True)


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_where_nan_is_ignored_an_outer_step_does_not_raise(merge):
    x = X.copy()
    x[3] = np.nan
    trainer = trainer_of(optimizer=PLAIN_SGD, net=mlp, gradients=Gradients(on_nan="ignore"))
    parameters = fit(
        trainer, data=blocked(x, Y, 7), num_epochs=1, merge=Merge(merge, outer_optimizer=MEAN)
    )
    assert np.isnan(parameters["0.weight"]).any()


class Odd(torch.optim.SGD):
    """Keeps a list, which has no mean."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = [1]


class CountsInGroups(torch.optim.SGD):
    """Counts its steps beside the learning rate, as public implementations of LAMB do."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1


class CountsForAll(torch.optim.SGD):
    """Counts its steps beside the states of parameters, as MADGRAD does."""

    def step(self, closure=None):
        super().step(closure)
        self.state["step"] = torch.tensor(1) + self.state.get("step", 0)


@pytest.mark.parametrize("kind", [Odd, CountsInGroups, CountsForAll])
def test_auto_keeps_what_cannot_be_averaged(kind):
    trainer = trainer_of(optimizer={"optimizer": kind, "lr": 0.1}, net=mlp)
    averaging = trainer_of(optimizer=PLAIN_SGD, net=mlp)
    fit(trainer, merge="auto")
    fit(averaging, merge="auto")
    assert trainer.configuration["fit"]["merge"]["optimizer_state"] == "keep"
    assert averaging.configuration["fit"]["merge"]["optimizer_state"] == "average"


def test_optimizers_that_a_merge_cannot_use():
    trainer = trainer_of(optimizer={"optimizer": Odd, "lr": 0.1}, net=mlp)
    with pytest.raises(
        ValueError,
        match=r"averages tensors.*, which Odd does not keep: it keeps 'seen' as a list; take",
    ):
        fit(trainer, merge=Merge(optimizer_state="average"))
    counting = trainer_of(optimizer={"optimizer": CountsInGroups, "lr": 0.1}, net=mlp)
    with pytest.raises(ValueError, match="it keeps 'step' in its groups of parameters; take"):
        fit(counting, merge=Merge(optimizer_state="average"))
    sparse = trainer_of(optimizer={"optimizer": torch.optim.SparseAdam}, net=mlp)
    with pytest.raises(ValueError, match="of dense gradients, which SparseAdam does not keep: "):
        fit(sparse, merge=Merge(optimizer_state="average"))
    for outer, message in (
        (torch.optim.LBFGS, "an outer step, which has one gradient, does not work with LBFGS"),
        ({"optimizer": "sgd", "lr": -1.0}, r"outer_optimizer=.*: optimizer 'sgd' has lr=-1\.0"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(trainer, merge=Merge(outer_optimizer=outer))


def test_integer_parameters_have_no_states_to_average():
    net = mlp()
    net.register_parameter("number", nn.Parameter(torch.tensor([1, 2]), requires_grad=False))
    fits = (
        fit(trainer_of(workers=1, net=lambda: net), merge=Merge(optimizer_state=state))
        for state in ("average", "keep")
    )
    assert_same_bits(*fits)


def test_an_outer_optimizer_that_cannot_be_sent_to_tasks():
    lock = threading.Lock()

    def locked(parameters):
        return torch.optim.SGD(parameters, lr=1.0 if lock else 0.0)

    with pytest.raises(TypeError, match=r"outer_optimizer .* cannot be pickled"):
        fit(trainer_of(), merge=Merge(outer_optimizer=locked))
