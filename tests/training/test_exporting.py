"""Exported networks have the outputs of ``predict``, for batches of any size and any kind of x."""

import gc
import logging
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import compss_train
from compss_train import DistributedTrainer, FileDataset, Merge
from compss_train.data import write_files
from tests.helpers.models import SGD, classification, mlp

X, Y = classification()
FIT = {"num_epochs": 1, "batch_size": 20, "progress": False}


def trained(net, x=X, y=Y, **options):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(net, SGD, "cross_entropy", **options)
    trainer.fit(x, y, **FIT)
    return trainer


def onnx_outputs(path, x):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    values = x if isinstance(x, dict) else {session.get_inputs()[0].name: x}
    return session.run(None, values)[0]


def program_outputs(path, x):
    program = torch.export.load(path).module()
    if isinstance(x, dict):
        named = {name: torch.from_numpy(part) for name, part in x.items()}
        return program(**named).detach().numpy()
    return program(torch.from_numpy(x)).detach().numpy()


def outputs_of_inputs(path, x):
    """Return the output of a written network for a tuple of inputs."""
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        names = [value.name for value in session.get_inputs()]
        return session.run(None, dict(zip(names, x, strict=True)))[0]
    parts = map(torch.from_numpy, x)
    return torch.export.load(path).module()(*parts).detach().numpy()


RUNNERS = {".onnx": onnx_outputs, ".pt2": program_outputs}


@pytest.fixture(params=list(RUNNERS))
def suffix(request):
    if request.param == ".onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    return request.param


def assert_as_predicted(trainer, path, x, **options):
    trainer.export(path, **options)
    assert_same_outputs(trainer, path, x, averaged=options.get("averaged", False))


def assert_same_outputs(trainer, path, x, *, averaged=False):
    outputs = RUNNERS[path.suffix](path, x)
    predicted = trainer.predict(x, averaged=averaged)
    np.testing.assert_allclose(outputs, predicted, rtol=1e-4, atol=1e-5)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number], Y[number]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(20, 8)
        self.item = nn.Linear(4, 8)

    def forward(self, item, user):
        return (self.user(user) * self.item(item))[:, :2]


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.embedding(x).mean(dim=1))


def test_dropout_is_off_and_batches_have_any_size(tmp_path, suffix):
    net = nn.Sequential(mlp(), nn.BatchNorm1d(3), nn.Dropout(0.5))
    trainer = trained(net)
    path = tmp_path / f"net{suffix}"
    trainer.export(path)
    for rows in (1, 2, 77):
        assert_same_outputs(trainer, path, X[:rows])


def test_several_inputs_by_name(tmp_path, suffix):
    rng = np.random.default_rng(0)
    x = {
        "user": rng.integers(0, 20, 60),
        "item": rng.normal(size=(60, 4)).astype(np.float32),
    }
    trainer = trained(Towers(), x, rng.integers(0, 2, 60))
    assert_as_predicted(trainer, tmp_path / f"net{suffix}", x)


def test_padded_sequences_have_any_length(tmp_path, suffix):
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 20, size=rng.integers(3, 9)) for _ in range(60)]
    trainer = trained(Mean(), texts, rng.integers(0, 2, 60))
    assert_as_predicted(trainer, tmp_path / f"net{suffix}", rng.integers(1, 20, size=(5, 40)))


class Kept(nn.Module):
    """Adds what a hook has kept, which holds the network."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.kept = None

        def keep(layer, inputs, output):
            self.kept = output

        self.net[0].register_forward_hook(keep)

    def forward(self, x):
        output = self.net(x)
        return output + self.kept.mean(dim=1, keepdim=True)


def test_hooks_that_hold_the_network_hold_the_one_that_is_exported(tmp_path):
    path = tmp_path / "net.safetensors"
    torch.manual_seed(0)
    trainer = trained(Kept())
    trainer.export(path)  # compares the outputs
    outputs = compss_train.load(path, Kept())(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(outputs, trainer.predict(X), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*float64 becomes float32")
def test_the_example_is_of_the_last_fit_or_as_for_predict(tmp_path):
    path = tmp_path / "net.pt2"
    frame = pd.DataFrame(X.astype(np.float64))
    trained(mlp(), frame).export(path)
    trainer = trained(mlp(), X.astype(np.float64))
    assert_as_predicted(trainer, path, X)
    files = write_files(tmp_path / "files", {"x": X, "y": Y}, rows=30)
    assert_as_predicted(trained(mlp(), FileDataset(files), None), path, X)
    for example in (X[:1], X, torch.from_numpy(X[:5])):
        assert_as_predicted(trainer, path, X, example=example)


def test_an_example_is_needed_where_the_last_fit_left_none(tmp_path, raises):
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(mlp(), SGD, "cross_entropy")
    with raises(ValueError, "example=, such as x[:8]"):
        trainer.export(tmp_path / "net.pt2")
    trainer.export(tmp_path / "net.safetensors")
    trainer.export(tmp_path / "net.pt2", X)
    trainer.fit(Pairs(), **FIT)
    with raises(ValueError, "example=, such as x[:8]"):
        trainer.export(tmp_path / "net.pt2")
    trainer.export(tmp_path / "net.pt2", Pairs())


def test_a_fit_keeps_few_samples_and_no_array_alive():
    x = X.copy()
    alive = weakref.ref(x)
    trainer = trained(mlp(), x)
    del x
    gc.collect()
    assert alive() is None, trainer


def test_weights_and_averages(tmp_path):
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(mlp(), SGD, "cross_entropy")
    trainer.fit(X, Y, merge=Merge(averaging=0.9), **{**FIT, "num_epochs": 3})
    assert_as_predicted(trainer, tmp_path / "net.pt2", X, averaged=True)
    trainer.export(tmp_path / "net.safetensors", averaged=True)
    net = compss_train.load(tmp_path / "net.safetensors", mlp())
    with torch.no_grad():
        outputs = net(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(outputs, trainer.predict(X, averaged=True), rtol=1e-5, atol=1e-6)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x) + torch.rand(1)


class Branching(Noisy):
    def forward(self, x):
        return self.net(x) if x.sum() > 0 else -self.net(x)


def test_networks_that_do_something_else_are_not_written(tmp_path, raises):
    with pytest.raises(ValueError, match=r"outputs differ from those of predict by"):
        trained(Noisy()).export(tmp_path / "net.pt2")
    with pytest.raises(ValueError, match="Branching cannot be exported"):
        trained(Branching()).export(tmp_path / "net.pt2")
    with raises(ValueError, "net.pth"):
        trained(mlp()).export(tmp_path / "net.pth")
    assert not list(tmp_path.iterdir())


class Translator(nn.Module):
    """Gets the tokens of one sequence, and those of another that are known."""

    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 20)
        self.options = options

    def forward(self, source, known):
        mask = nn.Transformer.generate_square_subsequent_mask(known.shape[1])
        source = self.embedding(source)
        known = self.embedding(known)
        outputs = self.transformer(source, known, tgt_mask=mask, **self.options)  # the call
        return self.last(outputs)[:, -1]


TOKENS = np.random.default_rng(0).integers(0, 20, size=(60, 5))


def translator(**options):
    trainer = trained(Translator(**options), (TOKENS, TOKENS[:, :4]), TOKENS[:, 4])
    return trainer, (TOKENS[:7], TOKENS[:7, :4])


def test_what_cannot_be_exported_is_named_with_its_line(tmp_path, capfd):
    trainer, _ = translator()
    capfd.readouterr()
    with pytest.raises(ValueError, match="Translator cannot be exported") as caught:
        trainer.export(tmp_path / "net.pt2")
    message = str(caught.value)
    assert f"This was {__file__}, line " in message
    assert "tgt_mask=mask, **self.options)  # the call. " in message
    assert message.endswith("unless it gets tgt_is_causal=True or False")
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match=r"line \d+: return self.net\(x\) if x.sum\(\) > 0"):
        trained(Branching()).export(tmp_path / "net.pt2")


@pytest.mark.parametrize("suffix", [".onnx"], indirect=True)  # made of what a .pt2 file has
def test_a_transformer_that_is_told_of_its_mask_is_exported(tmp_path, suffix, capfd):
    trainer, x = translator(tgt_is_causal=True)
    path = tmp_path / f"net{suffix}"
    capfd.readouterr()
    trainer.export(path, x)
    assert capfd.readouterr() == ("", "")
    outputs = outputs_of_inputs(path, x)
    np.testing.assert_allclose(outputs, trainer.predict(x), rtol=1e-4, atol=1e-5)


class Sequences(nn.Module):
    """Gets the tokens of two sequences."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.last = nn.Linear(8, 20)

    def forward(self, source, known):
        return self.last(self.embedding(source).mean(1) * self.embedding(known).mean(1))


def split(samples):
    """Return batches whose inputs are views of whole sequences."""
    tokens, classes = zip(*samples, strict=True)
    tokens = torch.stack(tokens)
    return (tokens[:, 1:], tokens[:, :-1]), torch.stack(classes)


def test_inputs_that_are_views_in_batches_are_any_tensors(tmp_path, suffix):
    trainer = trained(Sequences(), TOKENS, TOKENS[:, 4], collate=split)
    path = tmp_path / f"net{suffix}"
    trainer.export(path)
    x = TOKENS[:7, 1:].copy(), TOKENS[:7, :-1].copy()
    outputs = outputs_of_inputs(path, x)
    np.testing.assert_allclose(outputs, trainer.predict(TOKENS[:7]), rtol=1e-4, atol=1e-5)


class Padded(nn.Module):
    """Has a mask, for which torch has an operation of its own in evaluation."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(8, 20)

    def forward(self, tokens):
        outputs = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.last(outputs[:, 0])


def test_encoders_with_masks_are_exported(tmp_path, suffix):
    trainer = trained(Padded(), TOKENS + 1 - (TOKENS == 19), TOKENS[:, 0])
    assert_as_predicted(trainer, tmp_path / f"net{suffix}", TOKENS[TOKENS[:, 0] > 0])
    assert torch.backends.mha.get_fastpath_enabled()


class Named(nn.Module):
    """Its outputs have the names of what is computed before them, and of its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(X.shape[1], 4)

    def forward(self, x):
        linear = self.layer(x)
        return {"relu": linear, "linear": linear.relu(), "x": 2 * linear}


def test_onnx_has_the_names_of_outputs(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(Named(), SGD, lambda output, y: output["x"].square().mean())
    trainer.fit(X, Y, **FIT)
    trainer.export(tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    assert [value.name for value in session.get_outputs()] == ["relu", "linear", "x_output"]
    outputs = session.run(None, {"x": X})
    for output, expected in zip(outputs, trainer.predict(X).values(), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


class Bessel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return torch.special.i1(self.net(x))


def test_what_onnx_lacks_is_an_error(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    trainer = trained(Bessel())
    with pytest.raises(ValueError, match=r"cannot be written as ONNX.*bessel_i1.*\.pt2 file"):
        trainer.export(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _warning_exporter(monkeypatch):
    """One of the packages that the exporter calls warns in each export."""
    export = torch.onnx.export

    def warning_export(*args, **options):
        logging.getLogger("onnxscript.optimizer").warning("a warning of the optimizer")
        return export(*args, **options)

    monkeypatch.setattr(torch.onnx, "export", warning_export)


@pytest.mark.usefixtures("_warning_exporter")
def test_packages_of_the_exporter_print_nothing_but_by_handlers_of_the_program(
    tmp_path, capfd, caplog, monkeypatch
):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    trainer = trained(mlp())
    capfd.readouterr()
    with monkeypatch.context() as without_handlers:
        without_handlers.setattr(logging.root, "handlers", [])  # those of pytest
        trainer.export(tmp_path / "net.onnx")
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("onnxscript").handlers == []
    assert "a warning of the optimizer" not in caplog.text
    trainer.export(tmp_path / "net.onnx")
    assert "a warning of the optimizer" in caplog.text
