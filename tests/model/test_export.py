import sys

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.model import parameters
from compss_train.model.export import export
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification, mlp, state_arrays
from tests.helpers.tolerances import sum_error

# An output is a sum over a kernel of 9 pixels and a layer of 64 values, whose terms add up to at most 10.
ROUNDING = sum_error(np.float32, 9 + 64, 10)


def scaled(x):
    return x.float() / 255


@pytest.fixture
def session(tmp_path):
    """Open what was exported with another program than torch."""
    onnxruntime = pytest.importorskip("onnxruntime")
    return lambda: onnxruntime.InferenceSession(tmp_path / "model.onnx")


def test_a_trainer_exports_its_current_parameters_and_transform(tmp_path, session):
    images = np.random.default_rng(0).integers(0, 255, (30, 1, 6, 6)).astype(np.uint8)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)
    )
    with DistributedTrainer(2, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(net, SGD, "cross_entropy", transform=scaled)
        trainer.fit(images, np.arange(30) % 3, num_epochs=1, batch_size=5, progress=False)
        trainer.export(tmp_path / "model.onnx", images[:1])
        expected = trainer.predict(images)
    exported = session()
    assert [(value.name, value.type) for value in exported.get_inputs()] == [("x", "tensor(uint8)")]
    for samples in (1, 2, 30):
        output = exported.run(["output"], {"x": images[:samples]})[0]
        np.testing.assert_allclose(output, expected[:samples], rtol=0, atol=ROUNDING)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_exported_networks_of_many_kinds_return_the_same_numbers(tmp_path, session):
    x = torch.from_numpy(classification(9)[0])
    torch.manual_seed(0)
    nets = {
        "batch norm": awkward_net(),
        "recurrent": Recurrent(),
        "attention": nn.Sequential(nn.Unflatten(1, (3, 2)), nn.TransformerEncoderLayer(2, 1, 8, batch_first=True)),
    }
    for name, net in nets.items():
        export(tmp_path / "model.onnx", net, BlockedTensor.from_array(x, (3, 1)).collect())
        with torch.no_grad():
            expected = net.eval()(x).numpy()
        output = session().run(None, {"x": x.numpy()})[0]
        np.testing.assert_allclose(output, expected, rtol=0, atol=ROUNDING, err_msg=name)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.last = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.gru(x.unflatten(1, (3, 2)))[0][:, -1])


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_exported_parameters_are_the_whole_state_dict(tmp_path, suffix):
    net = awkward_net()
    path = tmp_path / "new" / f"model{suffix}"
    export(path, net)
    loaded = parameters.load(path)
    assert_same_bits({name: loaded[name] for name in state_arrays(net)}, state_arrays(net))
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_export_keeps_the_existing_file(tmp_path, session):
    path = tmp_path / "model.onnx"
    path.write_text("before")
    with pytest.raises(ValueError, match="has no Python code that depends on values of x"):
        export(path, Deciding(), np.zeros((2, 6), np.float32))
    with pytest.raises(ValueError, match=r"give example=x\[:2\]"):
        export(path, mlp())
    with pytest.raises(ValueError, match="the example has no samples"):
        export(path, mlp(), np.zeros((0, 6), np.float32))
    with pytest.raises(
        ValueError, match=r"cannot export to 'model.pth'; use a name that ends in .npz, .safetensors"
    ):
        export(tmp_path / "model.pth", mlp())
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_onnx_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'compss_train\[onnx\]'"):
        export(tmp_path / "model.onnx", mlp(), np.zeros((2, 6), np.float32))
