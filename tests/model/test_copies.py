"""Parametrized networks are copied, pickled and trained as any other."""

import copy
import pickle
import weakref

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

import compss_train
from compss_train import DistributedTrainer
from compss_train.engines.calls import intra_op_threads
from compss_train.model.copies import CopyTemplate, copy_network
from tests.helpers.models import ADAM, assert_same_bits, blocked, classification, state_arrays
from tests.helpers.notes import Notes
from tests.helpers.plain_loop import plain_loop

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
X, Y = classification(samples=57)


class Doubled(nn.Module):
    """A parametrization of one's own."""

    def forward(self, weight):
        return 2 * weight

    def right_inverse(self, weight):
        return weight / 2


def doubled_twice(layer):
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    return parametrize.register_parametrization(layer, "weight", Doubled())


KINDS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": doubled_twice,
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
}


def net_of(kind):
    torch.manual_seed(7)
    return nn.Sequential(
        KINDS[kind](nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), KINDS[kind](nn.Linear(6, 3))
    )


def outputs(net):
    with intra_op_threads(1):
        return net.eval()(torch.from_numpy(X)).detach().numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_pickled_and_is_the_same_network(kind):
    net = net_of(kind)
    net(torch.from_numpy(X))  # leaves computed tensors behind
    copied = copy_network(net)
    loaded = pickle.loads(cloudpickle.dumps(copy.deepcopy(copied)))
    for network in (copied, loaded, copy_network(loaded)):
        assert_same_bits(state_arrays(network), state_arrays(net))
        assert outputs(network) == outputs(net)
        assert [parametrize.is_parametrized(part) for part in network] == [
            parametrize.is_parametrized(part) for part in net
        ]
    with torch.no_grad():
        next(loaded.parameters()).add_(1)
    assert outputs(loaded) != outputs(net) == outputs(copied)


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_the_plain_loop(engine, kind):
    net = net_of(kind)
    trainer = DistributedTrainer(1, engine=engine, seed=5, threads=1)
    trainer.build(net, ADAM, "cross_entropy")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(*blocked(X, Y, 3), num_batches_per_worker=4, num_epochs=3, **still)
    plain = plain_loop(
        copy_network(net), lambda p: torch.optim.Adam(p, lr=0.01), X, Y, 3, 4, 3, seed=5
    )
    assert_same_bits(ours, plain)
    assert trainer.predict(X).tobytes() == outputs(trainer.model())


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_loaded_into_new_networks(kind, tmp_path):
    trainer = DistributedTrainer(2, engine="serial", seed=5, threads=1)
    trainer.build(net_of(kind), ADAM, "cross_entropy")
    trainer.fit(X, Y, batch_size=10, num_epochs=2, progress=False)
    path = tmp_path / "net.safetensors"
    trainer.save(path)
    loaded = compss_train.load(path, net_of(kind))
    assert_same_bits(state_arrays(loaded), dict(trainer.get_parameters()))
    assert outputs(loaded) == outputs(trainer.model())


class WithBackends(nn.Linear):
    """Keeps members of an enumeration that is compiled."""

    def __init__(self):
        super().__init__(6, 3)
        self.backends = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]

    def forward(self, x):
        return super().forward(x) * len(self.backends) * (self.backends[0] == SDPBackend.MATH)


def test_members_of_compiled_enumerations_are_sent(engine):
    trainer = DistributedTrainer(1, engine=engine, seed=5, threads=1)
    torch.manual_seed(0)
    net = WithBackends()
    trainer.build(net, ADAM, "cross_entropy")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(*blocked(X, Y, 3), num_batches_per_worker=4, num_epochs=2, **still)
    plain = plain_loop(net, lambda p: torch.optim.Adam(p, lr=0.01), X, Y, 3, 4, 2, seed=5)
    assert_same_bits(ours, plain)
    assert trainer.model().backends == net.backends


SCRIPT = """
import functools
import torch
from torch import nn

@functools.lru_cache(maxsize=2)
def reversed_unit(size):
    return torch.eye(size).flip(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    @functools.cached_property
    def scale(self):
        return torch.rand(3)

    def forward(self, x):
        return self.layer(x) @ reversed_unit(3) * self.scale
"""


def test_functions_and_properties_of_scripts_that_cache_are_sent(engine):
    names = {"__name__": "__main__"}
    exec(compile(SCRIPT, "<script>", "exec"), names)
    torch.manual_seed(0)
    net = names["Net"]()
    trainer = DistributedTrainer(1, engine=engine, seed=5, threads=1)
    trainer.build(net, ADAM, "cross_entropy")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(*blocked(X, Y, 3), num_batches_per_worker=4, num_epochs=2, **still)
    plain = plain_loop(net, lambda p: torch.optim.Adam(p, lr=0.01), X, Y, 3, 4, 2, seed=5)
    assert_same_bits(ours, plain)


def test_what_no_copy_owns_is_shared_also_if_deepcopy_does_not_know_its_type():
    net = nn.Linear(2, 2)
    net.of_itself = weakref.WeakMethod(net.forward)
    with pytest.raises(TypeError, match="WeakMethod"):
        copy.deepcopy(net)
    copied = CopyTemplate(net, []).copy("cpu")
    assert copied is not net
    assert copied.of_itself is net.of_itself


@pytest.mark.parametrize(
    "held", [np.float32(3), pd.DataFrame({"x": [3.0]}), Notes([3.0])], ids=lambda held: type(held)
)
def test_functions_share_no_variables_beside_what_decides_itself_how_it_is_copied(held):
    """Such as scalars of numpy and data frames."""
    count = 0

    def count_calls():
        nonlocal count
        count += 1
        return count, held

    template = CopyTemplate(count_calls, [])
    first = template.copy("cpu")
    second = template.copy("cpu")
    assert [first()[0], first()[0], second()[0], count] == [1, 2, 1, 0]
    assert (first()[1] is second()[1]) == isinstance(held, Notes)
    np.testing.assert_array_equal(first()[1], held)


class Deciding(nn.Module):
    """Decides itself how it is copied, like ``torch.fx.GraphModule``."""

    def __init__(self, inner, function):
        super().__init__()
        self.inner = inner
        self.function = function

    def __deepcopy__(self, memo):
        copied = Deciding.__new__(Deciding)
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def forward(self, x):
        return self.inner(x) * self.function()


def test_functions_share_no_variables_in_a_network_that_decides_itself_how_it_is_copied():
    count = 0
    inner = nn.Linear(2, 2)

    def count_calls():
        nonlocal count
        count += 1
        count_calls.calls = getattr(count_calls, "calls", 0) + 1
        return count

    def bias():
        return inner.bias, count_calls

    net = nn.Sequential(Deciding(inner, count_calls), inner)
    values = {"net": net, "step": count_calls, "bias": bias}
    template = CopyTemplate(values, [*net.parameters()])
    first = template.copy("cpu")
    second = template.copy("cpu")
    assert [first["step"](), first["step"](), second["step"](), count] == [1, 2, 1, 0]
    assert not hasattr(count_calls, "calls")
    for copied in (first, second):
        assert copied["net"][0].inner is copied["net"][1]
        assert copied["net"][0].function is copied["step"]
        assert copied["net"][0].inner is not inner
        parameter, function = copied["bias"]()
        assert parameter is copied["net"][1].bias
        assert function is copied["step"]


def test_workers_with_a_network_of_torch_fx_share_no_closures():
    def built(workers):
        seen = []

        def loss(output, target):
            seen.append(1.0)
            return nn.functional.cross_entropy(output, target) * (1 + 0.01 * len(seen))

        torch.manual_seed(3)
        net = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3)))
        trainer = DistributedTrainer(workers, engine="serial", seed=0, threads=1)
        trainer.build(net, {"optimizer": "sgd", "lr": 0.1}, loss)
        return trainer

    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    options = {"num_epochs": 1, "num_batches_per_worker": 4, **still}
    together = built(2).fit(*blocked(X[:56], Y[:56], 2), **options)
    alone = [built(1).fit(x, y, **options) for x, y in ((X[:28], Y[:28]), (X[28:56], Y[28:56]))]
    for name, array in together.items():
        mean = (alone[0][name].astype(float) + alone[1][name]) / 2
        np.testing.assert_array_equal(array, mean.astype(np.float32))


class NeedsArguments(nn.Linear):
    """Its ``__new__`` needs what copies do not give it."""

    def __new__(cls, inputs, outputs):
        return super().__new__(cls)


def test_modules_that_cannot_be_copied_are_named():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(NeedsArguments(2, 1)))
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(TypeError, match=r"'1\.0' of the network cannot be copied \(.*__new__"):
        trainer.build(net, {"optimizer": "sgd", "lr": 0.1}, "mse")


class WithPart:
    """A training step that holds a part which cannot be copied, and a network."""

    def __init__(self, net):
        self.net = net
        self.part = {"mean": NeedsArguments(2, 1)}

    def __call__(self, model, batch, context):
        return model(batch[0]).mean()


@pytest.mark.parametrize("holds_trained", [True, False])
def test_parts_of_steps_that_cannot_be_copied_are_named(holds_trained):
    net = nn.Linear(2, 1)
    trainer = DistributedTrainer(1, engine="serial")
    step = WithPart(net if holds_trained else None)
    with pytest.raises(TypeError, match=r"training_step\.part\['mean'\] .* cannot be copied \("):
        trainer.build(net, {"optimizer": "sgd", "lr": 0.1}, training_step=step)
