"""Tests of dislib's interface and of the conversion of its tensors."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Merge, SerialEngine
from compss_train.engines.nodes import Node
from compss_train.integrations.dislib import (
    EncapsulatedFunctionsDistributedEddl,
    EncapsulatedFunctionsDistributedPytorch,
)
from tests.helpers.models import FITS, assert_same_bits
from tests.integrations.dislib_tensors import Tensor, tensors, whole


@pytest.fixture(autouse=True)
def serial(monkeypatch):
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def built():
    trainer = EncapsulatedFunctionsDistributedPytorch(num_workers=2)
    trainer.build(network(), torch.optim.SGD, nn.CrossEntropyLoss, {"lr": 0.05, "momentum": 0.9})
    return trainer


@pytest.mark.parametrize("fit", FITS)
def test_every_fit_returns_the_trained_module(fit):
    x, y = tensors()
    trainer = built()
    assert not isinstance(trainer.get_parameters(), dict)
    net = getattr(trainer, fit)(x, y, 3, 4)
    assert isinstance(net, nn.Sequential)
    assert trainer.get_parameters() is net
    before, after = (nn.functional.cross_entropy(module(whole(x).float()), whole(y)) for module in (network(), net))
    assert after < before


def test_training_equals_the_trainer_on_float32():
    x, y = tensors()
    trainer = built()
    net = trainer.fit_synchronous_with_GPU(x, y, 3, 2)
    own = DistributedTrainer(2, seed=trainer.trainer.seed)
    own.build(network(), {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}, nn.CrossEntropyLoss())
    x32, _ = tensors(torch.float32)
    theirs = own.fit_synchronous_with_GPU(x32, y, 3, 2, merge=Merge(optimizer_state="reset_blocks"))
    assert_same_bits({name: tensor.numpy() for name, tensor in net.state_dict().items()}, theirs)


def test_the_eddl_interface_returns_arrays():
    x, y = tensors()
    bytes_of_x = Tensor(255 * whole(x), (2, 2))
    trainer = EncapsulatedFunctionsDistributedEddl(num_workers=2)
    net = nn.Sequential(network(), nn.Softmax(dim=1))
    optimizer = {"optimizer": "sgd", "lr": 0.05}
    trainer.build(net, optimizer, "softmax_cross_entropy", "categorical_accuracy", 0, 0)
    parameters = trainer.fit_asynchronous_with_GPU(bytes_of_x, y, 3, 4)
    assert trainer.get_parameters() is parameters
    by_name = trainer.trainer.get_parameters()
    flat = [array for layer in parameters for array in layer]
    assert_same_bits(dict(zip(by_name, flat, strict=True)), by_name)
    assert trainer.trainer.history[-1]["categorical_accuracy"] > 0.5


def test_missing_gpus_are_replaced_by_the_cpu(monkeypatch):
    def usable(gpus):
        trainer = EncapsulatedFunctionsDistributedPytorch(1)
        trainer.build(network(), torch.optim.SGD, nn.CrossEntropyLoss, {"lr": 0.05}, gpus)
        return trainer.trainer.configuration["build"]["num_gpu"]

    monkeypatch.setattr(SerialEngine, "nodes", lambda: [Node("a", 8), Node("b", 8)])
    with pytest.warns(UserWarning, match="num_gpu=2, but there are no GPUs for torch: training on the CPU"):
        assert usable(2) == 0
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    assert usable(2) == 0
    monkeypatch.delenv("ComputingUnitsGPUs")
    monkeypatch.setattr(SerialEngine, "nodes", lambda: [Node("a", 8, 4), Node("b", 8, 4)])
    assert [usable(gpus) for gpus in (0, 4, 16)] == [0, 4, 8]


def test_other_objects_than_tensors_are_errors():
    with pytest.raises(TypeError, match=r"expected a dislib Tensor.*got a SimpleNamespace"):
        BlockedTensor.from_dislib(SimpleNamespace(tensors=7))


def test_conversion_to_and_from_dislib(monkeypatch):
    module = ModuleType("dislib.data.tensor")
    module.Tensor = lambda **attributes: SimpleNamespace(**attributes)
    for name in ("dislib", "dislib.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", module)
    blocked = BlockedTensor.from_array(np.arange(12.0).reshape(6, 2), (3, 1))
    tensor = blocked.to_dislib()
    assert (tensor.shape, tensor.tensor_shape, tensor.number_samples, tensor.delete) == ((3, 1), (2, 2), 6, False)
    np.testing.assert_array_equal(BlockedTensor.from_dislib(tensor).collect(), blocked.collect())


def test_conversion_to_dislib_needs_dislib(monkeypatch):
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", None)
    with pytest.raises(ImportError, match="to_dislib needs dislib"):
        BlockedTensor.from_array(np.ones((2, 1)), (1, 1)).to_dislib()


def test_futures_are_described_by_the_compss_engine_though_only_data_was_imported():
    program = """
import sys
from types import SimpleNamespace
from compss_train.data import BlockedTensor
assert "compss_train.engines" not in sys.modules
sys.modules["pycompss"] = None
try:
    BlockedTensor.from_dislib(SimpleNamespace(tensors=[[object()]]))
except ImportError as error:
    assert "the compss engine needs PyCOMPSs" in str(error)
else:
    raise SystemExit("a future was described without PyCOMPSs")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
