"""What evaluation, ``model()`` and files see of what workers keep outside the parameters."""

import numpy as np
import pytest
import torch
from torch import nn

import compss_train
from compss_train import BadFileError, DistributedTrainer, Merge
from compss_train.callbacks import Callback, Checkpoint
from compss_train.model import parameters as params

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = X + 2
KINDS = [
    Merge("synchronous"),
    Merge("commutative", quorum=1),
    Merge("commutative", quorum=0),
    Merge("parameter_server"),
]


class ActNorm(nn.Module):
    """Initializes itself from its first batch; every layer of Glow does."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.begun = False
        self.seen = {"batches": 0}
        self.register_buffer("batches", torch.zeros(()), persistent=False)

    def forward(self, x):
        if not self.begun:
            self.shift.data.copy_(-x.mean(0))
            self.begun = True
        if self.training:
            self.seen["batches"] += 1
            self.batches += 1
        return x + self.shift


def built(engine="serial", workers=2, **arguments):
    trainer = DistributedTrainer(workers, engine=engine, threads=1, seed=0)
    arguments = {"loss": nn.MSELoss(), **arguments}
    trainer.build(nn.Sequential(ActNorm()), {"optimizer": "sgd", "lr": 0.1}, **arguments)
    return trainer


def fitted(engine="serial", epochs=3, workers=2, *, built_with=None, **options):
    trainer = built(engine, workers, **(built_with or {}))
    trainer.fit(X, Y, num_epochs=epochs, batch_size=10, progress=False, **options)
    return trainer


def loss_of(net):
    with torch.no_grad():
        return nn.MSELoss()(net(X), Y).item()


class Evaluating(Callback):
    """Evaluates the network after each round, in this process and by tasks."""

    def __init__(self):
        self.losses = []

    def on_round_end(self, trainer, record):
        self.losses.append((record["val_loss"], loss_of(trainer.model())))


def assert_sees(net, batches):
    assert net[0].begun
    assert net[0].seen == {"batches": batches}
    assert net[0].batches.item() == batches


def test_on_every_engine(engine):
    evaluating = Evaluating()
    with fitted(engine, validation_data=(X, Y), callbacks=[evaluating]) as trainer:
        for in_task, here in evaluating.losses:
            assert in_task == pytest.approx(here, rel=1e-5)
        loss = loss_of(trainer.model())
        assert trainer.evaluate(X, Y)["loss"] == pytest.approx(loss, rel=1e-5)
        predicted = torch.from_numpy(trainer.predict(X))
        assert nn.MSELoss()(predicted, Y).item() == pytest.approx(loss, rel=1e-5)
    assert_sees(trainer.model(), 9)  # also once the processes have ended


@pytest.mark.parametrize("merge", KINDS, ids=str)
def test_every_kind_of_merge(merge):
    trainer = fitted(merge=merge, validation_data=(X, Y))
    assert_sees(trainer.model(), 9)
    assert trainer.history[-1]["val_loss"] == pytest.approx(loss_of(trainer.model()), rel=1e-5)


def test_averages(tmp_path):
    trainer = fitted(merge=Merge(averaging="ema"), validation_data=(X, Y))
    assert_sees(trainer.model(averaged=True), 9)
    loss = loss_of(trainer.model(averaged=True))
    assert trainer.history[-1]["val_averaged_loss"] == pytest.approx(loss, rel=1e-5)


def test_files(tmp_path):
    trainer = fitted(callbacks=[Checkpoint(tmp_path / "checkpoints")])
    file = tmp_path / "net.safetensors"
    trainer.save(file)
    for path in (file, tmp_path / "checkpoints"):
        assert_sees(compss_train.load(path, nn.Sequential(ActNorm())), 9)
    with pytest.warns(UserWarning, match="network.0.begun"):
        trainer.save(tmp_path / "net.npz")
    with pytest.warns(UserWarning, match=r"net\.npz"):
        trainer.save(tmp_path / "net.npz")


def test_a_damaged_file(tmp_path):
    file = tmp_path / "net.safetensors"
    fitted().save(file)
    data = file.read_bytes()
    start = data.index(b"compss_train.state") + 200
    file.write_bytes(data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :])
    with pytest.raises(BadFileError, match="damaged"):
        compss_train.load(file, nn.Sequential(ActNorm()))


def test_parameters_bring_it_to_another_trainer(tmp_path):
    trainer = fitted()
    file = tmp_path / "net.safetensors"
    trainer.save(file)
    for parameters in (trainer.get_parameters(), params.load(file)):
        other = built()
        other.set_parameters(parameters)
        assert_sees(other.model(), 9)
        other.fit(X, Y, num_epochs=1, batch_size=10, progress=False)
        assert_sees(other.model(), 12)
        assert other.history[0]["loss"] < trainer.history[-1]["loss"]


def test_restored_with_more_workers_and_after_an_error(tmp_path):
    fitted(callbacks=[Checkpoint(tmp_path)])
    trainer = built()
    trainer.restore(tmp_path)
    assert_sees(trainer.model(), 9)

    class Failing(Callback):
        def on_round_end(self, trainer, record):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.fit(X, Y, num_epochs=1, batch_size=10, progress=False, callbacks=[Failing()])
    assert_sees(trainer.model(), 12)
    trainer.fit(X, Y, num_epochs=1, batch_size=10, progress=False)
    assert_sees(trainer.model(), 15)


def test_a_new_network_begins_anew():
    trainer = fitted()
    trainer.build(nn.Sequential(ActNorm()), {"optimizer": "sgd", "lr": 0.1}, nn.MSELoss())
    assert not trainer.model()[0].begun


def test_a_worker_0_without_samples_in_a_round():
    trainer = fitted(merge=Merge(every=1, unit="batches"), validation_data=(X, Y), epochs=1)
    assert trainer.history[-1]["val_loss"] == pytest.approx(loss_of(trainer.model()), rel=1e-5)


class Scaled:
    """A transform, or loss, that remembers the first batch."""

    def __init__(self):
        self.scale = None

    def __call__(self, x, target=None):
        if self.scale is None:
            self.scale = x.detach().abs().amax()
        scaled = x / self.scale
        return scaled if target is None else nn.functional.mse_loss(scaled, target)


@pytest.mark.parametrize("place", ["transform", "loss", "metric"])
def test_other_objects_than_the_network(place):
    trainer = fitted(workers=1, built_with={place: Scaled()}, validation_data=(X, Y))
    whole = trainer.evaluate(X, Y)
    name = "scaled" if place == "metric" else "loss"
    name = next(key for key in whole if key.lower().startswith(name))
    assert whole[name] == pytest.approx(trainer.history[-1][f"val_{name}"], rel=1e-6)
    # Its scale is that of the first training batch, and not that of these samples.
    single = trainer.evaluate(X[:1], Y[:1], batch_size=1)
    every = [trainer.evaluate(X[i : i + 1], Y[i : i + 1])[name] for i in range(len(X))]
    assert single[name] == pytest.approx(every[0])
    assert np.mean(every) == pytest.approx(whole[name], rel=1e-4)


class Methods:
    """A training step and a validation step of one object."""

    def __init__(self):
        self.steps = 0

    def train(self, net, batch, context):
        self.steps += 1
        return nn.functional.mse_loss(net(batch[0]), batch[1])

    def validate(self, net, batch, context):
        loss = nn.functional.mse_loss(net(batch[0]), batch[1])
        return {"loss": loss, "steps": float(self.steps)}


def test_a_validation_step_of_the_same_object():
    steps = Methods()
    trainer = fitted(
        built_with={"training_step": steps.train, "validation_step": steps.validate},
        validation_data=(X, Y),
    )
    assert [record["val_steps"] for record in trainer.history] == [3, 6, 9]
    assert steps.steps == 0
