"""What tensors of networks have besides values is in workers' copies: hooks, attributes, and
whether they are trained.
"""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Checkpoint, Unfreeze
from tests.helpers.models import state_arrays

EPOCHS = 3
BATCH = 8
generator = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=generator)
Y = torch.randint(0, 3, (32,), generator=generator)
SGD = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def clipped():
    net = mlp()
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return net


def scaled_after_accumulation():
    net = mlp()

    def scale(parameter):
        parameter.grad.mul_(0.5)

    net[0].weight.register_post_accumulate_grad_hook(scale)
    return net


def counted_in_a_closure():
    net = mlp()
    calls = 0

    def scale(gradient):
        nonlocal calls
        calls += 1
        return gradient / calls

    net[2].weight.register_hook(scale)
    return net


def held_by_a_closure():
    net = mlp()
    net[0].weight.register_hook(lambda gradient: gradient + 0.1 * net[0].weight.detach())
    return net


class Counting(nn.Module):
    """A hook that is a method of the network changes an attribute of it."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.calls = 0
        self.handle = self.net[0].weight.register_hook(self.scale)

    def scale(self, gradient):
        self.calls += 1
        if self.calls == 6:
            self.handle.remove()
        return gradient / self.calls

    def forward(self, x):
        return self.net(x)


def marked():
    net = mlp()
    for name, parameter in net.named_parameters():
        parameter.decay = 0.0 if "bias" in name else 0.1
    return net


class BufferWithGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("scale", torch.ones(3).requires_grad_())

    def forward(self, x):
        output = self.net(x) * self.scale
        (gradient,) = torch.autograd.grad(output.sum(), self.scale, create_graph=True)
        return output + 0.1 * gradient


def plain_step(model, batch, context):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def with_decay(model, batch, context):
    return plain_step(model, batch, context) + sum(
        parameter.decay * parameter.square().sum() for parameter in model.parameters()
    )


def with_means_in_attributes(model, batch, context):
    penalty = 0.0
    for parameter in model.parameters():
        before = getattr(parameter, "average", torch.zeros_like(parameter))
        parameter.average = 0.5 * before + 0.5 * parameter.detach()
        penalty = penalty + (parameter - parameter.average).square().sum()
    return plain_step(model, batch, context) + penalty


def freezing(model, batch, context):
    if context.number == 5:
        model[0].weight.requires_grad_(False)
    return plain_step(model, batch, context)


def alternating(model, batch, context):
    """As in GANs, whose generator is trained through a discriminator that is frozen meanwhile."""
    model[2].requires_grad_(context.number % 3 == 0)
    return plain_step(model, batch, context)


def by_decay(parameters):
    groups = [{"params": [parameter], "weight_decay": parameter.decay} for parameter in parameters]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


PROGRAMS = {
    "clipped": (clipped, plain_step, sgd),
    "after accumulation": (scaled_after_accumulation, plain_step, sgd),
    "closure that counts": (counted_in_a_closure, plain_step, sgd),
    "closure with the network": (held_by_a_closure, plain_step, sgd),
    "attributes, in the step": (marked, with_decay, sgd),
    "attributes, in the optimizer": (marked, plain_step, by_decay),
    "attributes that batches set": (mlp, with_means_in_attributes, sgd),
    "frozen in a batch": (mlp, freezing, sgd),
    "frozen by turns": (mlp, alternating, sgd),
    "a buffer with a gradient": (BufferWithGradient, plain_step, sgd),
}


def in_loop(make, step, make_optimizer):
    net = make()
    optimizer = make_optimizer(net.parameters())

    class Context:
        number = 0

    for _ in range(EPOCHS):
        for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
            optimizer.zero_grad()
            step(net, (x, y), Context).backward()
            optimizer.step()
            Context.number += 1
    return state_arrays(net)


def trainer_of(make, step, make_optimizer, workers=1, engine="serial"):
    trainer = DistributedTrainer(workers, engine=engine, seed=0)
    trainer.build(make(), make_optimizer, training_step=step)
    return trainer


def fitted(trainer, epochs=EPOCHS, **options):
    return trainer.fit(
        X,
        Y,
        num_epochs=epochs,
        batch_size=BATCH,
        shuffle=None,
        shuffle_block_data=False,
        progress=False,
        **options,
    )


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_rounds_are_those_of_the_plain_loop(name):
    assert_same(fitted(trainer_of(*PROGRAMS[name])), in_loop(*PROGRAMS[name]))


@pytest.mark.parametrize("name", ["clipped", "closure that counts", "frozen by turns"])
def test_resumed_fits_and_processes_have_the_same_bits(name, tmp_path):
    program = PROGRAMS[name]
    whole = fitted(trainer_of(*program, workers=2))
    fitted(trainer_of(*program, workers=2), EPOCHS - 1, callbacks=[Checkpoint(tmp_path)])
    resumed = trainer_of(*program, workers=2, engine="local")
    assert_same(fitted(resumed, callbacks=[Checkpoint(tmp_path)], resume=True), whole)


@pytest.mark.parametrize("part", [lambda net: net[0], lambda net: net[0].weight])
@pytest.mark.parametrize("workers", [1, 2])
def test_hooks_that_batches_register_are_an_error_in_the_next_round(part, workers):
    def registering(model, batch, context):
        if context.number == 0:
            hooks = part(model)
            if isinstance(hooks, nn.Module):
                hooks.register_forward_hook(lambda module, inputs, output: output / 2)
            else:
                hooks.register_hook(lambda gradient: gradient / 2)
        return plain_step(model, batch, context)

    fitted(trainer_of(mlp, registering, sgd, workers), 1)  # the only round has them
    with pytest.raises(TypeError, match=re.escape("hooks of network.0")):
        fitted(trainer_of(mlp, registering, sgd, workers))


def test_a_hook_that_a_batch_removes_is_an_error_in_the_next_round():
    with pytest.raises(TypeError, match=r"network\.net\.0\.weight, which had none"):
        fitted(trainer_of(Counting, plain_step, sgd), merge=Merge(every=2))


def test_a_hook_that_replaces_another_one_is_an_error_in_the_next_round():
    def pruned():
        net = mlp()
        prune.l1_unstructured(net[0], "weight", 0.5)
        return net

    def pruning(model, batch, context):
        if context.number == 2:
            prune.l1_unstructured(model[0], "weight", 0.5)
        return plain_step(model, batch, context)

    with pytest.raises(TypeError, match=r"network\.0, which had \S+PruningContainer after"):
        fitted(trainer_of(pruned, pruning, sgd))


def test_hooks_for_one_batch_are_none_in_the_next_round():
    def observing(model, batch, context):
        seen = []
        hook = model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
        loss = plain_step(model, batch, context)
        hook.remove()
        return loss + 0.1 * seen[0].square().mean()

    assert_same(fitted(trainer_of(mlp, observing, sgd)), in_loop(mlp, observing, sgd))


def test_what_is_unfrozen_by_a_callback_is_frozen_in_the_network_of_the_next_fit():
    def frozen():
        net = mlp()
        net[0].requires_grad_(False)
        return net

    trainer = trainer_of(frozen, plain_step, sgd)
    unfreeze = Unfreeze("0", epoch=1)
    before = state_arrays(frozen())["0.weight"]
    assert (fitted(trainer, callbacks=[unfreeze])["0.weight"] != before).any()
    once = trainer.get_parameters()["0.weight"]
    assert (fitted(trainer, callbacks=[unfreeze])["0.weight"] != once).any()
    assert not trainer.model()[0].weight.requires_grad
