"""Compiled networks: their own names, one compilation for all copies and batch sizes, and the bits of a plain fit.

The backend ``eager`` traces the network as ``torch.compile`` does, and runs that with the same kernels.
"""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients
from compss_train.model.export import export
from tests.helpers.models import SGD, assert_close, assert_same_bits, awkward_net, mlp
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.helpers.tolerances import sgd_error, sum_error

EAGER = {"backend": "eager"}


class Counting:
    """A backend that counts how often it compiles, and runs what it gets as it is."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward

    def __deepcopy__(self, memo):
        return self


def step(model, batch, context):
    x, y = batch
    output = model(x)
    return {"loss": context.loss(output, y), "number": context.number, "output": output}


@pytest.mark.parametrize(
    "options",
    [{}, {"training_step": step}, {"precision": "bf16", "gradients": Gradients(accumulate=2)}],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_a_compiled_fit_is_the_plain_one(options):
    """Two rounds, three workers, seven blocks, with dropout and BatchNorm; also evaluated and predicted."""
    plain, compiled = (trainer_of(compile=value, **options) for value in (False, EAGER))
    for trainer in (plain, compiled):
        fit(trainer, num_epochs=2, validation_data=(X, Y))
    assert_same_bits(compiled.get_parameters(), plain.get_parameters())
    assert list(compiled.get_parameters()) == list(awkward_net().state_dict())
    assert compiled.evaluate(X, Y) == plain.evaluate(X, Y)
    assert np.array_equal(compiled.predict(X), plain.predict(X))


def test_all_copies_and_batch_sizes_have_one_compilation():
    counting = Counting()
    fit(trainer_of(net=mlp, compile={"backend": counting}), validation_data=(X, Y))
    assert counting.graphs == 1


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("yes", TypeError, r"compile='yes': give True, False, or a dict"),
        ({"modus": "max-autotune"}, ValueError, r"compile=.*modus"),
        ({"mode": "fastest"}, ValueError, r"compile=\{'mode': 'fastest'\}: .*fastest"),
        ({"backend": "icc"}, ValueError, r"compile=\{'backend': 'icc'\}: .*icc"),
    ],
    ids=str,
)
def test_unknown_options_are_refused(value, error, message):
    with pytest.raises(error, match=message):
        trainer_of(compile=value)


def test_a_network_that_is_compiled_already_is_refused():
    with pytest.raises(ValueError, match=r"_orig_mod.*build\(compile=True\)"):
        DistributedTrainer(1, engine="serial").build(torch.compile(mlp(), backend="eager"), SGD, "cross_entropy")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns of its own parts
def test_the_default_backend_trains_the_same_within_rounding():
    """The only test that runs a compiler."""
    results = []
    for value in (True, True, False):
        trainer = trainer_of(net=mlp, optimizer=SGD, compile=value)
        results.append(fit(trainer, num_epochs=2))
    assert_same_bits(*results[:2])
    # Two epochs of at most three blocks a worker, of two batches.
    assert_close(results[0], results[2], sgd_error(np.float32, 12, SGD["lr"], samples=6, momentum=0.9))


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
        trainer.save(tmp_path / "model.onnx", images[:1])
        expected = trainer.predict(images)
    exported = session()
    assert [(value.name, value.type) for value in exported.get_inputs()] == [("x", "tensor(uint8)")]
    for samples in (1, 2, 30):
        output = exported.run(["output"], {"x": images[:samples]})[0]
        np.testing.assert_allclose(output, expected[:samples], rtol=0, atol=ROUNDING)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_failed_export_keeps_the_existing_file(tmp_path, session, capfd):
    path = tmp_path / "model.onnx"
    path.write_text("before")
    with pytest.raises(ValueError, match="has no Python code that depends on values of x"):
        export(path, Deciding(), np.zeros((2, 6), np.float32))
    assert capfd.readouterr() == ("", "")  # no pages of the exporter
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
