"""Fine-tuning: frozen parts do not drift, and those that are unfrozen train as in a plain loop, on
every engine.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import Gradients, Merge, Schedule
from compss_train.callbacks import Checkpoint, Unfreeze
from compss_train.engines.calls import intra_op_threads
from compss_train.model.devices import random_state
from tests.helpers.cases import slow
from tests.helpers.models import ADAM, SGD, assert_same_bits, awkward_net, state_arrays
from tests.helpers.plain_loop import cut, tensor
from tests.helpers.small_fits import STILL, X, Y, assert_alike, fit, trainer_of


def frozen_net():
    """The body is frozen, and its BatchNorm keeps its statistics."""
    net = awkward_net()
    net[0].requires_grad_(False)
    net[1].requires_grad_(False).eval()
    return net


def fine_tuned(epoch, factor, epochs):
    """Train the head in a plain loop, with rates that halve in each epoch, the first layer from
    some epoch on.
    """
    net = frozen_net()
    optimizer = torch.optim.Adam(net[4].parameters(), lr=0.01)
    with intra_op_threads(1), random_state(0, "cpu"):
        for number in range(epochs):
            if number == epoch:
                optimizer.add_param_group({"params": net[0].requires_grad_().parameters()})
            for group, own in zip(optimizer.param_groups, (1, factor), strict=False):
                group["lr"] = 0.01 * 0.5**number * own
            for x, y in cut(X, Y, 1, 3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(tensor(x)), tensor(y)).backward()
                optimizer.step()
    return state_arrays(net)


def halving(epoch):
    return 0.5**epoch


@pytest.mark.parametrize("epoch", [2, 9])
def test_one_worker_is_a_plain_loop(epoch):
    """Also after an epoch that is not reached."""
    trainer = trainer_of(workers=1, net=frozen_net, schedule=halving)
    ours = fit(
        trainer,
        Unfreeze("0", epoch=epoch, factor=0.5),
        blocks=1,
        batch_size=19,
        num_epochs=4,
        **STILL,
    )
    assert_same_bits(ours, fine_tuned(epoch, 0.5, 4))
    statistics = state_arrays(frozen_net())["1.running_mean"]
    np.testing.assert_array_equal(ours["1.running_mean"], statistics)


@pytest.mark.parametrize("state", ["average", "reset_blocks", *slow("keep", "reset")])
def test_engines_and_resumes_give_the_same_bits(state, shared_local, tmp_path):
    """Resumed before and after the first round that trains the layer, which begins one epoch
    late.
    """
    callbacks = [Unfreeze("0.weight", epoch=1), Unfreeze("0", epoch=3)]
    options = {"merge": Merge(every=2, optimizer_state=state), "num_epochs": 7}
    whole, local = (trainer_of(engine, net=frozen_net) for engine in ("serial", shared_local))
    fit(whole, *callbacks, Checkpoint(tmp_path, keep=9), **options)
    fit(local, *callbacks, **options)
    assert_alike(local, whole)
    for number in range(2):
        resumed = trainer_of(net=frozen_net)
        fit(resumed, *callbacks, resume=tmp_path / f"round-{number:06}", **options)
        assert_alike(resumed, whole)
    frozen = whole.get_parameters()
    before = state_arrays(frozen_net())
    assert [name for name in before if np.array_equal(frozen[name], before[name])] == [
        name for name in before if name.startswith("1.")
    ]


def test_gradients_of_what_blocks_unfreeze_are_clipped():
    """In a round of several epochs each block has a new optimizer, of more parameters."""
    trainer = trainer_of(
        workers=1, net=frozen_net, optimizer=SGD, gradients=Gradients(clip_value=1e-6)
    )
    merge = Merge(every=0, optimizer_state="reset_blocks")
    trained = fit(trainer, Unfreeze("0", epoch=1), merge=merge, num_epochs=3)
    built = state_arrays(frozen_net())["0.weight"]
    assert 0 < np.abs(trained["0.weight"] - built).max() < 1e-4


def test_other_modes_are_another_network(tmp_path):
    fit(trainer_of(), Checkpoint(tmp_path), num_epochs=1)
    other = awkward_net()
    other[3].eval()
    with pytest.raises(ValueError, match="modules in evaluation mode was , and is 3"):
        fit(
            trainer_of(net=lambda: copy.deepcopy(other)),
            Checkpoint(tmp_path),
            num_epochs=2,
            resume=True,
        )


def test_mistakes_are_found(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"Unfreeze\('4'\) matches no frozen parameter; the frozen ones are 0.weight, 0.bias",
    ):
        fit(trainer_of(net=frozen_net), Unfreeze("4", epoch=1))
    lbfgs = {"optimizer": torch.optim.LBFGS, "lr": 0.1}
    with pytest.raises(ValueError, match="a parameter group, which LBFGS does not support"):
        fit(trainer_of(workers=1, net=frozen_net, optimizer=lbfgs), Unfreeze("0", epoch=0))
    trainer = trainer_of(net=frozen_net, optimizer=ADAM, schedule=Schedule(halving))
    fit(trainer, Unfreeze("0", epoch=0))
    with pytest.raises(ValueError, match="give later fits the same callback"):
        fit(trainer)
    fit(trainer, Unfreeze("0", epoch=0))
