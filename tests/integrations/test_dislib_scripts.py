"""Scripts for ``dislib.pytorch`` and ``dislib.eddl``, with their import lines changed and nothing
else.
"""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn, optim

from compss_train import BlockedTensor, SerialEngine
from compss_train.callbacks import Callback
from compss_train.engines.nodes import Node
from compss_train.integrations.dislib import (
    EncapsulatedFunctionsDistributedEddl,
    EncapsulatedFunctionsDistributedPytorch,
    PytorchDistributed,
)
from compss_train.integrations.dislib.eddl import layers_of
from tests.helpers.cases import slow
from tests.helpers.models import FITS, assert_same_bits, state_arrays
from tests.helpers.notes import Notes
from tests.integrations.dislib_tensors import Tensor, images, tensors, whole


@pytest.fixture(autouse=True)
def serial(monkeypatch):
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")
    monkeypatch.setenv("ComputingUnitsGPUs", "0")


class TwoHalves(nn.Module):
    """A network with the attributes that dislib exchanges."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.neural_network_layers = nn.Sequential(nn.Conv2d(1, 4, kernel_size=(1, 1)), nn.ReLU())
        self.dense_neural_network_layers = nn.Sequential(
            nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2)
        )

    def forward(self, x):
        return self.dense_neural_network_layers(torch.flatten(self.neural_network_layers(x), 1))


def call(encapsulated, fit, x, y):
    """Call a fit as the documentation of dislib lists its arguments."""
    arguments = [x, y, 3, 4]
    if "n_epochs" in fit:
        arguments.append(2)
    if "shuffle" not in fit:
        arguments += [True, False]
    return getattr(encapsulated, fit)(*arguments)


@pytest.mark.parametrize("fit", [*FITS[1::2], *slow(*FITS[::2])])
def test_a_script_for_dislib_pytorch(fit):
    x, y = images()
    x_tensor = Tensor(whole(x) / 255.0, (2, 2))
    y_tensor = Tensor(whole(y), (2, 2))
    model = TwoHalves()
    encaps_function = EncapsulatedFunctionsDistributedPytorch(num_workers=2)
    options = {"lr": 0.3, "momentum": 0.9}
    encaps_function.build(model, optim.SGD, nn.CrossEntropyLoss, options, num_gpu=1, num_nodes=1)
    assert encaps_function.model_parameters is model
    trained = call(encaps_function, fit, x_tensor, y_tensor)
    for mine, its in zip(model.neural_network_layers, trained.neural_network_layers, strict=True):
        if hasattr(mine, "weight"):
            mine.weight = nn.Parameter(its.weight)
            mine.bias = nn.Parameter(its.bias)
    assert encaps_function.get_parameters() is encaps_function.model_parameters is trained
    samples, labels = (
        torch.cat([torch.cat(row) for row in tensor.collect()]) for tensor in (x_tensor, y_tensor)
    )
    assert (trained(samples.float()).argmax(1) == labels.argmax(1)).float().mean() > 0.8


def soft_network():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2), nn.Softmax(dim=1)
    )


def predicted(parameters, x):
    """Compute the network's outputs from the parameters of its layers, which four of the five have
    none of.
    """
    flat, (w1, b1), relu, (w2, b2), softmax = parameters
    assert (flat, relu, softmax) == ([], [], [])
    return np.maximum(x.reshape(len(x), -1) @ w1.T + b1, 0) @ w2.T + b2


@pytest.mark.parametrize("fit", [*FITS[::2], *slow(*FITS[1::2])])
def test_a_script_for_dislib_eddl(fit):
    x_tensor, y_tensor = images()
    encaps_function = EncapsulatedFunctionsDistributedEddl(num_workers=2)
    optimizer = {"optimizer": "sgd", "lr": 0.3, "momentum": 0.9}
    names = ("softmax_cross_entropy", "categorical_accuracy")
    assert encaps_function.build(soft_network(), optimizer, *names, num_gpu=0, num_nodes=1) is None
    before = encaps_function.get_parameters()
    parameters = call(encaps_function, fit, x_tensor, y_tensor)
    assert isinstance(parameters, np.ndarray)
    assert parameters.shape == before.shape == (5,)
    assert encaps_function.get_parameters() is encaps_function.model_parameters is parameters
    assert all(array.dtype == np.float32 for layer in parameters for array in layer)
    x, y = (whole(tensor).numpy() for tensor in (x_tensor, y_tensor))
    assert (predicted(parameters, x / 255.0).argmax(1) == y.argmax(1)).mean() > 0.8
    assert encaps_function.trainer.history[-1]["categorical_accuracy"] > 0.8


def pytorch_class(num_workers=2, *, net=None, num_gpu=0, num_nodes=0, threads=1, **options):
    encapsulated = EncapsulatedFunctionsDistributedPytorch(num_workers, threads=threads, **options)
    parameters = {"lr": 0.05, "momentum": 0.9}
    encapsulated.build(
        net or TwoLinear(), optim.SGD, nn.CrossEntropyLoss, parameters, num_gpu, num_nodes
    )
    return encapsulated


def eddl_class(num_workers=2, *, net=None, num_gpu=0, num_nodes=0, threads=1, **options):
    encapsulated = EncapsulatedFunctionsDistributedEddl(num_workers, threads=threads, **options)
    spec = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    net = net or nn.Sequential(TwoLinear(), nn.Softmax(dim=1))
    encapsulated.build(net, spec, "softmax_cross_entropy", "accuracy", num_gpu, num_nodes)
    return encapsulated


class TwoLinear(nn.Sequential):
    def __init__(self):
        torch.manual_seed(4)
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


CLASSES = pytest.mark.parametrize("made", [pytorch_class, eddl_class])


@CLASSES
def test_engine_and_seed_are_keywords(made, engine):
    x, y = tensors()
    one, other = (made(seed=5, engine=engine) for _ in range(2))
    for encapsulated in (one, other):
        encapsulated.fit_synchronous_shuffle_with_GPU(x, y, 3, 2)
    assert one.trainer.seed == 5
    assert one.trainer.configuration["trainer"]["engine"] == getattr(engine, "name", engine)
    assert_same_bits(one.trainer.get_parameters(), other.trainer.get_parameters())


def test_a_torch_fit_starts_from_the_module_in_model_parameters():
    x, y = tensors()
    once, changed, replaced = (
        pytorch_class(seed=5, net=net) for net in (TwoLinear(), TwoLinear(), TwoLinear())
    )
    with torch.no_grad():
        for module in (once.model_parameters, changed.model_parameters):
            module[0].weight.fill_(0.25)
    replaced.model_parameters = once.model_parameters
    first, *others = (
        each.fit_synchronous_with_GPU(x, y, 3, 2) for each in (once, changed, replaced)
    )
    for other in others:
        assert_same_bits(state_arrays(first), state_arrays(other))
    assert not torch.equal(
        first[0].weight, pytorch_class(seed=5).fit_synchronous_with_GPU(x, y, 3, 2)[0].weight
    )


def test_an_eddl_fit_starts_from_the_layers_in_model_parameters():
    x, y = tensors()
    one = eddl_class(seed=5)
    other = eddl_class(seed=5)
    for each in (one, other):
        each.fit_synchronous_with_GPU(x, y, 3, 1)
    layers = [[np.array(array) for array in layer] for layer in one.model_parameters]
    assert [len(layer) for layer in layers] == [2, 5, 2, 0]
    layers[0][0][:] = 0.25
    one.model_parameters = layers
    assert (
        one.fit_synchronous_with_GPU(x, y, 3, 1)[0][0]
        != other.fit_synchronous_with_GPU(x, y, 3, 1)[0][0]
    ).any()
    for bad in (layers[:2], [[np.zeros(2)], *layers[1:]]):
        one.model_parameters = bad
        with pytest.raises(
            ValueError, match=r"the layers have arrays of shapes .* but those of the network"
        ):
            one.fit_synchronous_with_GPU(x, y, 3, 1)


@CLASSES
def test_an_entry_of_compss_object_has_what_its_worker_trains_with(made):
    net = nn.Sequential(TwoLinear(), nn.Softmax(dim=1))
    encapsulated = made(4, net=net, num_gpu=3, num_nodes=2)
    assert len(encapsulated.compss_object) == 4
    for own in encapsulated.compss_object:
        assert own.model is net
        if made is eddl_class:
            assert own.optimizer == {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
            assert (own.loss, own.metric, own.num_gpu) == ("softmax_cross_entropy", "accuracy", 3)
        else:
            assert (own.optimizer, own.optimizer_parameters) == (
                optim.SGD,
                {"lr": 0.05, "momentum": 0.9},
            )
            assert isinstance(own.loss, nn.CrossEntropyLoss)


def stepped(own, parameters, x, y):
    """Train on a block in order, with the entry's own step."""
    if isinstance(own, PytorchDistributed):
        return own.train_cnn_batch_GPU(parameters, x, y, 3, False)
    return own.train_batch_GPU(parameters, x, y, x.dtype, 3, shuffle_block_data=False)


def arrays_of(parameters):
    if isinstance(parameters, nn.Module):
        return state_arrays(parameters)
    return dict(enumerate(array for layer in parameters for array in layer))


@CLASSES
def test_a_script_may_take_the_steps_of_an_epoch_itself(made):
    x, y = tensors(shape=(2, 1))
    one = made(1, threads=None)
    encapsulated = made(2, threads=None)
    start = encapsulated.get_parameters()
    trained = [
        stepped(own, start, *(tensor.tensors[number][0] for tensor in (x, y)))
        for number, own in enumerate(encapsulated.compss_object)
    ]
    assert encapsulated.get_parameters() is start
    block = [Tensor(tensor.tensors[0][0], (1, 1)) for tensor in (x, y)]
    fitted = one.fit_synchronous_with_GPU(*block, 3, 1, False, False)
    assert_same_bits(arrays_of(trained[0]), arrays_of(fitted))
    first, second = (
        {name: array.copy() for name, array in arrays_of(each).items()} for each in trained
    )
    assert encapsulated.compss_object[0].aggregate_parameters_async(*trained) is trained[0]
    assert_same_bits(arrays_of(trained[1]), second)
    for name, array in arrays_of(trained[0]).items():
        assert array.dtype == first[name].dtype
        if array.dtype.kind == "f":
            np.testing.assert_array_equal(array, (first[name] + second[name]) / 2)
    assert any((first[name] != second[name]).any() for name in first)


@CLASSES
def test_entries_train_with_the_options_of_build(made):
    x, y = tensors(shape=(1, 1))
    seen = Notes()
    encapsulated = made(1)
    spec = [optim.SGD, nn.CrossEntropyLoss, {"lr": 0.05}]
    if made is eddl_class:
        spec = [{"optimizer": "sgd", "lr": 0.05}, nn.CrossEntropyLoss(), "accuracy"]
    encapsulated.build(
        TwoLinear(), *spec, transform=lambda batch: seen.append(len(batch)) or batch.float()
    )
    stepped(
        encapsulated.compss_object[0],
        encapsulated.get_parameters(),
        x.tensors[0][0],
        y.tensors[0][0],
    )
    assert seen == [20, 20, 20]


@CLASSES
def test_after_an_exception_the_last_complete_round_is_kept(made):
    class Stopping(Callback):
        def on_round_end(self, trainer, record):
            raise KeyError("stop")

    encapsulated = made()
    with pytest.raises(KeyError):
        encapsulated.fit_synchronous_with_GPU(*tensors(), 3, 2, callbacks=[Stopping()])
    kept = encapsulated.trainer.model()
    now = encapsulated.get_parameters()
    if isinstance(now, nn.Module):
        assert_same_bits(state_arrays(kept), state_arrays(now))
    else:
        both = zip(layers_of(kept), now, strict=True)
        assert all(map(np.array_equal, own, its) for layers in both for own, its in [layers])


@CLASSES
def test_gpus_are_those_of_all_nodes(made, monkeypatch):
    def usable(gpus, *nodes, num_nodes=0):
        monkeypatch.setattr(SerialEngine, "nodes", lambda: nodes)
        encapsulated = made(num_gpu=gpus, num_nodes=num_nodes)
        assert encapsulated.num_gpu == gpus
        return encapsulated.trainer.configuration["build"]["num_gpu"]

    assert usable(4, Node("a", 8, 4)) == 0  # with ComputingUnitsGPUs=0
    monkeypatch.delenv("ComputingUnitsGPUs")
    assert [usable(gpus, Node("a", 8, 2), Node("b", 8, 1)) for gpus in (0, 2, 4)] == [0, 2, 3]
    four_a_node = [Node(name, 8, 4) for name in "abc"]
    assert [usable(4, *four_a_node, num_nodes=nodes) for nodes in (0, 1, 2, 3, 4)] == [
        4,
        4,
        8,
        12,
        12,
    ]
    with pytest.warns(
        UserWarning, match=("num_gpu=2, but there are no GPUs for torch: training on the CPU")
    ):
        assert usable(2, Node("a", 8)) == 0


def eddl_built(*args):
    EncapsulatedFunctionsDistributedEddl(1).build(*args)


def fit_of(encapsulated, **attributes):
    vars(encapsulated).update(attributes)
    encapsulated.fit_synchronous_with_GPU(*tensors(), 3, 1)


SPEC = {"optimizer": "sgd", "lr": 0.002}
AT_LEAST_0 = "give an integer of at least 0"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("error", "name", "call"),
    [
        (
            RuntimeError,
            "no network yet; call build(",
            lambda: fit_of(EncapsulatedFunctionsDistributedPytorch(2)),
        ),
        (
            RuntimeError,
            "no network yet; call build(",
            lambda: fit_of(EncapsulatedFunctionsDistributedEddl(2)),
        ),
        (TypeError, "is a dict", lambda: fit_of(pytorch_class(), model_parameters={})),
        (ValueError, "unknown loss 'triple'", lambda: eddl_built(None, SPEC, "triple", "mse")),
        (
            ValueError,
            "unknown metric 'none'",
            lambda: eddl_built(nn.Linear(1, 1), SPEC, "mse", "none"),
        ),
        *(
            (
                TypeError,
                "give a dict, for example",
                partial(eddl_built, nn.Linear(1, 1), optimizer, "mse", "mse"),
            )
            for optimizer in ("sgd", optim.SGD, None)
        ),
        *(
            (ValueError, AT_LEAST_0, partial(made, **number))
            for made in (pytorch_class, eddl_class)
            for number in ({"num_gpu": -1}, {"num_nodes": -1}, {"num_gpu": 1.5})
        ),
    ],
)
def test_errors(error, name, call, raises):
    with raises(error, name):
        call()


def test_conversion_to_and_from_dislib(monkeypatch):
    module = ModuleType("dislib.data.tensor")
    module.Tensor = lambda **attributes: SimpleNamespace(**attributes)
    for name in ("dislib", "dislib.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", module)
    blocked = BlockedTensor.from_array(np.arange(12.0).reshape(6, 2), (3, 1))
    tensor = blocked.to_dislib()
    assert (tensor.shape, tensor.tensor_shape, tensor.number_samples, tensor.delete) == (
        (3, 1),
        (2, 2),
        6,
        False,
    )
    np.testing.assert_array_equal(BlockedTensor.from_dislib(tensor).collect(), blocked.collect())


def test_conversion_to_dislib_needs_dislib(monkeypatch):
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", None)
    with pytest.raises(ImportError, match="to_dislib needs dislib"):
        BlockedTensor.from_array(np.ones((2, 1)), (1, 1)).to_dislib()
