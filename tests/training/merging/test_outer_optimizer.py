"""The outer optimizer, averaged optimizer states, the average of merged parameters, the agreement of workers."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, Gradients, Merge
from compss_train.callbacks import Callback
from compss_train.model.metrics import Measured
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.training_spec import TensorNames
from compss_train.model.weighted_mean import partial_sum
from compss_train.training.merging.base import agreement
from compss_train.worker import MergeRule, finish
from tests.helpers.callbacks import InterruptAt
from tests.helpers.means import weighted
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
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


def rounds_of(workers=3, optimizer=ADAM, net=awkward_net, **options):
    """Return a trainer after a fit, and its parameters after every round."""
    trainer, rounds = trainer_of(workers=workers, optimizer=optimizer, net=net), EveryRound()
    fit(trainer, rounds, **options)
    return trainer, rounds.parameters


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_mean_has_the_same_bits_in_other_precisions(dtype):
    def net():
        return mlp().to(dtype)

    x = X.astype(torch.empty(0, dtype=dtype).numpy().dtype)
    fits = [
        fit(trainer_of(net=net, optimizer=PLAIN_SGD, metric=None), data=(x, Y), merge=Merge(outer_optimizer=outer))
        for outer in (MEAN, None)
    ]
    assert_same_bits(*fits)


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
    weights, velocity = list(net.parameters()), [0.0] * 4
    for _ in range(2):
        for batch in range(6):
            rows = slice(10 * batch, 10 * batch + 10)
            loss = nn.functional.cross_entropy(net(torch.from_numpy(x[rows]).double()), torch.from_numpy(y[rows]))
            gradients = [0.1 * gradient for gradient in torch.autograd.grad(loss, weights)]
            velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
            with torch.no_grad():
                for weight, g, v in zip(weights, gradients, velocity, strict=True):
                    weight -= 0.7 * (g + 0.9 * v)
    expected = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    assert_close(ours, expected, sgd_error(np.float32, 12, 0.1 * 0.7 * 1.9, samples=10, momentum=0.9))


def averaged(trainer):
    return {name: tensor.numpy() for name, tensor in trainer.model(averaged=True).state_dict().items()}


def test_buffers_are_averaged_and_not_stepped():
    _, plain = rounds_of()
    _, stepped = rounds_of(merge=Merge(outer_optimizer={"optimizer": "sgd", "lr": 0.5}))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert plain[0][name].tobytes() == stepped[0][name].tobytes()
    start = {name: tensor.numpy() for name, tensor in awkward_net().state_dict().items()}
    half = (start["0.weight"] + plain[0]["0.weight"]) / 2
    np.testing.assert_allclose(stepped[0]["0.weight"], half, rtol=0, atol=2 * np.finfo(np.float32).eps)


def test_frozen_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.frozen, self.first = nn.Linear(6, 6), nn.Linear(6, 6)
            self.frozen.requires_grad_(False)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.relu(self.first(self.frozen(x))))

    outer = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 0.1}
    _, rounds = rounds_of(net=Tied, merge=Merge(outer_optimizer=outer))
    start = {name: tensor.numpy() for name, tensor in Tied().state_dict().items()}
    for parameters in rounds:
        assert parameters["first.weight"].tobytes() == parameters["second.weight"].tobytes()
        assert parameters["frozen.weight"].tobytes() == start["frozen.weight"].tobytes()


def test_without_any_samples_momentum_does_not_go_on():
    base = {"w": np.ones(3, np.float32)}
    rule = MergeRule(names=TensorNames(("w",)), optimizer=optimizer_factory(NESTEROV))
    moved, _, state = finish(weighted([{"w": np.zeros(3, np.float32)}], [5]), rule, base)
    items = weighted([moved] * 2, [0, 0])
    for none in (items, [partial_sum(items)]):
        parameters, _, after = finish(none, rule, moved, state)
        assert_same_bits(parameters, moved)
        assert after is state


@pytest.mark.parametrize(("optimizer", "make"), [(SGD, torch.optim.SGD), (ADAM, torch.optim.Adam)], ids=str)
def test_averaged_optimizer_states_are_those_of_a_plain_loop(optimizer, make):
    """Two workers with blocks of 12 and 18 samples, 3 and 5 batches: two copies trained by torch and averaged."""
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
    net, state = mlp(), None
    for _ in range(3):
        nets, states = zip(*[_trained(net, state, make, options, x[cut], y[cut]) for cut in cuts], strict=True)
        with torch.no_grad():
            for own, *theirs in zip(net.parameters(), *(each.parameters() for each in nets), strict=True):
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
    for rows in np.array_split(np.arange(len(x)), -(-len(x) // 4)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    return own, optimizer.state_dict()


def _mean(one, other):
    return ((one.double() * 12 + other.double() * 18) / 30).to(one.dtype)


def test_a_fit_that_keeps_states_starts_from_averages():
    trainer = trainer_of(workers=2, optimizer=SGD, net=mlp)
    fit(trainer, num_epochs=1, merge=Merge(optimizer_state="average"))
    moments = trainer.snapshot().merge["moments"]
    assert all(state.optimizer is None for state in trainer.snapshot().workers)
    fit(trainer, num_epochs=1, merge=Merge(optimizer_state="keep"))
    kept, once = trainer.get_parameters(), trainer_of(workers=2, optimizer=SGD, net=mlp)
    fit(once, num_epochs=2, merge=Merge(optimizer_state="average"))
    assert_same_bits(kept, once.get_parameters())  # the first round of the second fit starts alike
    assert set(moments) == {f"optimizer state/{number}.momentum_buffer" for number in range(4)}


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


def test_an_interrupted_fit_leaves_the_average_of_its_last_round():
    trainer, whole = trainer_of(), trainer_of()
    fit(trainer, merge=Merge(averaging="ema"), num_epochs=2)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(3), merge=Merge(averaging="ema"), num_epochs=3)
    fit(whole, merge=Merge(averaging="ema"), num_epochs=3)
    assert_same_bits(averaged(trainer), averaged(whole))
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(4), num_epochs=2)
    with pytest.raises(ValueError, match="the last fit kept no average"):
        trainer.model(averaged=True)


def test_without_an_average_there_is_none_to_return():
    trainer, _ = rounds_of(num_epochs=1)
    with pytest.raises(ValueError, match=r'give fit merge=Merge\(averaging="ema"\)'):
        trainer.model(averaged=True)


def test_agreement_of_workers():
    assert agreement([Measured(given=5, change=4.0)] * 2, Measured(change=4.0)) == {"worker_agreement": 1.0}
    # Two orthogonal changes of norm 2: their mean has the squared norm 2.
    noise = agreement([Measured(given=5, change=4.0)] * 2, Measured(change=2.0))
    assert noise == {"worker_agreement": pytest.approx(0.5**0.5)}  # without a signal there is no noise scale
    # A gradient of norm 1 with a variance of 6 a sample, in batches of 2 and 8: norms 1 + 6/2 and 1 + 6/8.
    known = agreement([Measured(given=2, change=4.0)] * 4, Measured(change=1.75))
    assert known["noise_scale"] == pytest.approx(6.0)
    idle = Measured()
    assert agreement([*[Measured(given=2, change=4.0)] * 4, idle], Measured(change=1.75)) == known
    assert (
        agreement([Measured(given=5, change=4.0), idle], Measured(change=4.0)) == agreement([idle] * 2, idle) == {}
    )


def test_records_have_the_agreement_of_the_changes():
    x, y = classification(samples=60)
    trainer, rounds = rounds_of(
        workers=2, optimizer=PLAIN_SGD, net=mlp, data=blocked(x, y, 2), num_epochs=1, **STILL
    )
    start = {name: tensor.numpy() for name, tensor in mlp().state_dict().items()}
    alone = [
        fitted("serial", 1, *blocked(x[half], y[half], 1), num_epochs=1, batch_size=6, **STILL)
        for half in (slice(30), slice(30, None))
    ]
    norms = [sum(np.square(p[name] - start[name]).sum() for name in start) for p in [*alone, rounds[0]]]
    expected = np.sqrt(norms[2] / np.mean(norms[:2]))
    assert trainer.history[0]["worker_agreement"] == pytest.approx(expected, rel=1e-4)
    for outer in (None, NESTEROV):
        one, _ = rounds_of(workers=1, num_epochs=1, merge=Merge(outer_optimizer=outer))
        assert "worker_agreement" not in one.history[0]


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_where_nan_is_ignored_an_outer_step_does_not_raise(merge):
    x = X.copy()
    x[3] = np.nan
    trainer = trainer_of(optimizer=PLAIN_SGD, net=mlp, gradients=Gradients(on_nan="ignore"))
    parameters = fit(trainer, data=blocked(x, Y, 7), num_epochs=1, merge=Merge(merge, outer_optimizer=MEAN))
    assert np.isnan(parameters["0.weight"]).any()


class Odd(torch.optim.SGD):
    """Keeps a list, which has no mean."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = [1]


def test_optimizers_that_a_merge_cannot_use():
    trainer = trainer_of(optimizer={"optimizer": Odd, "lr": 0.1}, net=mlp)
    with pytest.raises(ValueError, match="averages tensors, but Odd keeps 'seen' as a list; take"):
        fit(trainer, merge=Merge(optimizer_state="average"))
    sparse = trainer_of(optimizer={"optimizer": torch.optim.SparseAdam}, net=mlp)
    with pytest.raises(ValueError, match="needs an optimizer of dense gradients, but SparseAdam says"):
        fit(sparse, merge=Merge(optimizer_state="average"))
    for outer, message in (
        (torch.optim.LBFGS, "an outer step, which has one gradient, does not go with LBFGS"),
        ({"optimizer": "sgd", "lr": -1.0}, r"outer_optimizer=.*: Invalid learning rate: -1\.0"),
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


def test_callable_outer_optimizers_are_described():
    trainer = trainer_of(workers=2, net=mlp, optimizer=PLAIN_SGD)
    trainer.fit(X, Y, num_epochs=1, batch_size=20, merge=Merge(outer_optimizer=torch.optim.Adam), progress=False)
    assert trainer.configuration["fit"]["merge"]["outer_optimizer"] == "torch.optim.adam.Adam"
