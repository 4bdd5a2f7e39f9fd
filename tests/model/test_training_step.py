"""Training steps of one's own are plain PyTorch loops, on every engine and after a resume."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from compss_train import DistributedTrainer, Gradients, Merge, Samples, Schedule
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.engines.calls import intra_op_threads
from compss_train.model.devices import random_state
from tests.helpers.models import (
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.notes import Notes
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop, plain_steps
from tests.helpers.small_fits import assert_alike, fit
from tests.helpers.tolerances import loss_error, sum_error
from tests.same_bits.material import discriminator, generator

X, Y = classification(samples=62)
ROUNDING = loss_error(np.float32, len(X))
STILL = {
    "num_epochs": 2,
    "num_batches_per_worker": 3,
    "shuffle": None,
    "shuffle_block_data": False,
    "progress": False,
}
ADAM = {"optimizer": "adam", "lr": 0.01, "beta_1": 0.5}


def batches():
    """Iterate over the batches of two epochs, as the trainer makes them of four blocks."""
    for _ in range(2):
        for x, y in zip(np.array_split(X, 4), np.array_split(Y, 4), strict=True):
            for bx, by in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True):
                yield torch.from_numpy(bx.copy()), torch.from_numpy(by.copy())


def trainer_of(net, *arguments, engine="serial", workers=1, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(net, *arguments, **options)
    return trainer


def step(model, batch, context):
    x, y = batch
    output = model(x)
    loss = context.loss(output, y)
    decay = 0.01 * sum(weight.square().sum() for weight in model.parameters())
    return {"loss": loss + decay, "decay": decay, "output": output, "number": context.number}


def test_a_step_is_the_plain_loop_and_tells_its_numbers(engine):
    trainer = trainer_of(
        awkward_net(), SGD, "cross_entropy", "accuracy", engine=engine, training_step=step
    )
    ours = trainer.fit(*blocked(X, Y, 4), **STILL)
    net = awkward_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with intra_op_threads(1), random_state(3, "cpu"):
        for x, y in batches():
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            (loss + 0.01 * sum(weight.square().sum() for weight in net.parameters())).backward()
            optimizer.step()
    assert_same_bits(ours, state_arrays(net))
    assert [record["number"] for record in trainer.history] == [
        np.average(range(start, start + 12), weights=[6, 5, 5, 6, 5, 5, 5, 5, 5, 5, 5, 5])
        for start in (0, 12)
    ]
    assert 0 < trainer.history[0]["decay"] < trainer.history[0]["loss"]
    assert 0 < trainer.history[0]["accuracy"] <= 1


def stack(samples):
    return torch.stack([torch.as_tensor(sample) for sample in samples])


def in_tuple(samples):
    return (stack(samples),)


def two_views(samples):
    return {"one": stack(samples), "other": -stack(samples)}


TENSOR = torch.from_numpy(X)
CLASSES = torch.from_numpy(Y)
BATCHES = {
    "x": ((X, None), {}, DataLoader(TensorDataset(TENSOR), 31)),
    "x, y": ((X, Y), {}, DataLoader(TensorDataset(TENSOR, CLASSES), 31)),
    "samples": ((TensorDataset(TENSOR), None), {}, DataLoader(TensorDataset(TENSOR), 31)),
    "collate": ((X, None), {"collate": two_views}, DataLoader(X, 31, collate_fn=two_views)),
    **{
        f"{collate.__name__} of samples": (
            (Samples(X, collate=collate), None),
            {},
            DataLoader(X, 31, collate_fn=collate),
        )
        for collate in (stack, in_tuple, two_views)
    },
}


@pytest.mark.parametrize(("data", "options", "loader"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("lightning", [False, True])
def test_a_batch_is_what_a_data_loader_gives(data, options, loader, lightning):
    """Steps of training and validation get a tuple, also without y, or what ``collate`` made."""
    seen = Notes()

    def keep(model, batch, _):
        seen.append(batch)
        return sum(weight.sum() for weight in model.parameters())

    if lightning:
        trainer = trainer_of(lightning_with(training_step=keep, validation_step=keep), **options)
    else:
        trainer = trainer_of(mlp(), SGD, training_step=keep, **options)
    trainer.fit(
        *data, num_epochs=1, batch_size=31, shuffle=None, shuffle_block_data=False, progress=False
    )
    trainer.evaluate(*data, batch_size=31)
    expected = [tuple(batch) if isinstance(batch, list) else batch for batch in loader]
    torch.testing.assert_close([*seen], expected * 2, rtol=0, atol=0)


class Stepping(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)

    def step(self, batch, context):
        return functional.cross_entropy(self(batch[0]), batch[1])


@pytest.mark.parametrize("method", ["name", "function", "bound"])
def test_a_method_is_called_on_the_workers_copy(method):
    net = Stepping()
    training_step = {"name": "step", "function": Stepping.step, "bound": net.step}[method]
    before = copy.deepcopy(net.state_dict())
    trainer = trainer_of(net, SGD, training_step=training_step)
    ours = trainer.fit(*blocked(X, Y, 4), **STILL)
    expected = plain_loop(
        mlp(), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), X, Y, 4, 3, 2, 3
    )
    assert_same_bits({name.removeprefix("net."): array for name, array in ours.items()}, expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(reference_loss(trainer), abs=ROUNDING)


def reference_loss(trainer):
    with torch.no_grad():
        return float(
            functional.cross_entropy(
                trainer.model().eval()(torch.from_numpy(X)), torch.from_numpy(Y)
            )
        )


def test_a_validation_step_evaluates():
    def validate(model, batch, context):
        assert not context.training
        assert not model.training
        return {"loss": context.loss(model(batch[0]), batch[1]), "largest": model(batch[0]).max()}

    trainer = trainer_of(mlp(), SGD, "cross_entropy", training_step=step, validation_step=validate)
    trainer.fit(
        X, Y, **STILL, validation_data=(X, Y), callbacks=[EarlyStopping("val_largest", mode="max")]
    )
    values = trainer.evaluate(X, Y)
    assert values["loss"] == trainer.history[-1]["val_loss"]
    assert values["largest"] == trainer.history[-1]["val_largest"]


def test_options_of_steps_apply_and_weights_reach_the_step():
    """Accumulation and clipping are as without a step, and so is the loss with weights."""

    def plain(model, batch, context):
        return context.loss(model(batch[0]), batch[1], context.weight)

    options = {
        "gradients": Gradients(clip_norm=0.5, accumulate=2),
        "class_weight": [1, 2, 3],
        "schedule": lambda e: 0.5**e,
    }
    weights = np.linspace(0, 1, len(X))
    trainers = [
        trainer_of(awkward_net(), SGD, "cross_entropy", **options, **steps, workers=2)
        for steps in ({}, {"training_step": plain})
    ]
    for trainer in trainers:
        trainer.fit(*blocked(X, Y, 4), sample_weight=weights, **STILL)
    assert_same_bits(*(trainer.get_parameters() for trainer in trainers))


def losses(generate, discriminate, real):
    fake = generate(torch.randn(len(real), 4))
    real_loss = functional.softplus(-discriminate(real)).mean()
    yield real_loss + functional.softplus(discriminate(fake.detach())).mean()
    yield functional.softplus(-discriminate(fake)).mean()


def gan_step(model, batch, context):
    loss_d = None
    loss_g = None
    terms = losses(model["generator"], model["discriminator"], batch[0])
    context.update("discriminator", loss_d := next(terms))
    if context.number % 2 == 0:
        context.update("generator", loss_g := next(terms))
    return {"loss": loss_d, "loss_g": loss_d if loss_g is None else loss_g}


def gan(engine="serial", workers=1, **options):
    net = {"generator": generator(), "discriminator": discriminator()}
    optimizers = {
        "generator": ADAM,
        "discriminator": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5},
    }
    return trainer_of(
        net, optimizers, engine=engine, workers=workers, training_step=gan_step, **options
    )


def plain_gan():
    generate = generator()
    discriminate = discriminator()
    of_g = torch.optim.Adam(generate.parameters(), lr=0.01, betas=(0.5, 0.999))
    of_d = torch.optim.SGD(discriminate.parameters(), lr=0.05, momentum=0.5)
    with intra_op_threads(1), random_state(3, "cpu"):
        for number, (x, _) in enumerate(batches()):
            terms = losses(generate, discriminate, x)
            of_d.zero_grad()
            next(terms).backward()
            of_d.step()
            if number % 2 == 0:
                of_g.zero_grad()
                next(terms).backward()
                of_g.step()
    return {
        **{f"generator.{name}": array for name, array in state_arrays(generate).items()},
        **{f"discriminator.{name}": array for name, array in state_arrays(discriminate).items()},
    }


def test_two_optimizers_in_turns_are_the_plain_loop(engine):
    """The number of the batch goes on from task to task, so that every second batch is the same."""
    ours = gan(engine).fit(*blocked(X, Y, 4), merge=Merge(unit="blocks"), **STILL)
    assert_same_bits(ours, plain_gan())


@pytest.mark.parametrize("state", ["keep", "average"])
def test_all_modules_are_merged_and_each_optimizers_state_is_resumed(tmp_path, state):
    options = {"merge": Merge(every=3, unit="batches", optimizer_state=state), "num_epochs": 2}
    whole = gan(workers=2)
    fit(whole, Checkpoint(tmp_path, keep=99), **options)
    for folder in sorted(tmp_path.glob("round-*"))[:-1]:
        resumed = gan(workers=2)
        fit(resumed, resume=folder, **options)
        assert_alike(whole, resumed)


class Lightning(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = awkward_net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss_twice", 2 * loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log_dict({"val_loss": functional.cross_entropy(self(x), y), "val_share": 0.5})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def test_a_module_in_lightnings_style_is_taken_as_it_is(engine):
    trainer = trainer_of(Lightning(), engine=engine)
    ours = trainer.fit(*blocked(X, Y, 4), **STILL, validation_data=(X, Y))
    expected = plain_steps(awkward_net(), OPTIMIZERS[0][1], batches(), seed=3)
    assert_same_bits({name.removeprefix("net."): array for name, array in ours.items()}, expected)
    last = trainer.history[-1]
    assert last["loss_twice"] == pytest.approx(2 * last["loss"], rel=sum_error(np.float64, len(X)))
    assert last["val_loss"] == pytest.approx(reference_loss(trainer), abs=ROUNDING)
    assert last["val_share"] == 0.5


class Collecting(Lightning):
    """Computes at the end of an epoch what the records have as the loss."""

    def __init__(self):
        super().__init__()
        self.collected = []

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.collected.append((loss.detach(), len(batch[1])))
        return loss

    def validation_step(self, batch):
        return self.training_step(batch, 0)

    def on_train_epoch_end(self):
        losses, sizes = map(torch.tensor, zip(*self.collected, strict=True))
        self.log("train_collected", (losses @ sizes.float()) / sizes.sum())
        self.collected.clear()

    def on_validation_epoch_end(self):
        self.on_train_epoch_end()


def test_epoch_hooks_of_a_lightning_style_module_run_on_each_workers_copy(engine):
    trainer = trainer_of(Collecting(), engine=engine, workers=2)
    trainer.fit(*blocked(X, Y, 4), **STILL, merge=Merge(every=2), validation_data=(X, Y))
    (record,) = trainer.history
    assert record["collected"] == pytest.approx(record["loss"], abs=ROUNDING)
    assert record["val_collected"] == pytest.approx(record["val_loss"], abs=ROUNDING)


class OfLightning(Lightning):
    """Has the properties of ``LightningModule`` that are 0 unless a trainer is attached."""

    _trainer = None

    @property
    def trainer(self):
        return self._trainer

    @trainer.setter
    def trainer(self, trainer):
        self._trainer = trainer

    @property
    def current_epoch(self):
        return self.trainer.current_epoch if self._trainer else 0

    @property
    def global_step(self):
        return self.trainer.global_step if self._trainer else 0

    def training_step(self, batch, batch_idx):
        assert self.trainer.logger is None
        self.log("epoch_of_step", float(self.current_epoch))
        self.log("steps", float(self.global_step))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        self.log("epoch_of_end", float(self.current_epoch))


def test_modules_of_lightning_know_the_epoch_and_the_number_of_the_batch(engine):
    trainer = trainer_of(OfLightning(), engine=engine)
    trainer.fit(*blocked(X, Y, 4), **STILL, validation_data=(X, Y))
    for number, record in enumerate(trainer.history):
        assert record["epoch_of_step"] == record["epoch_of_end"] == number
        assert record["steps"] == pytest.approx(12 * number + 5.5, abs=0.2)  # 3 of each block


@pytest.mark.parametrize(
    ("methods", "name"),
    [
        ({"training_step": lambda self, *_: self.trainer.max_epochs}, "'max_epochs'"),
        (
            {"validation_step": lambda self, *_: self.current_epoch},
            "not known in evaluation",
        ),
    ],
)
def test_what_only_lightnings_trainer_knows_is_an_error(methods, name, raises):
    trainer = trainer_of(type("Asking", (OfLightning,), methods)())
    with raises(RuntimeError, name):
        trainer.check_fit(X, Y, num_epochs=1, batch_size=20, validation_data=(X, Y))


def test_other_reductions_of_what_is_logged_are_errors(raises):
    def summed(self, batch, batch_idx):
        self.log_dict({"ones": 1.0}, reduce_fx="sum")
        return Lightning.training_step(self, batch, batch_idx)

    with raises(TypeError, "log('ones', reduce_fx='sum')"):
        trainer_of(lightning_with(training_step=summed)).check_fit(
            X, Y, num_epochs=1, batch_size=20
        )


def lightning_with(**methods):
    return type("Asking", (Lightning,), methods)()


def test_what_only_a_trainer_calls_is_an_error_of_build():
    net = lightning_with(on_train_start=lambda self: None, setup=lambda self: None)
    with pytest.raises(
        TypeError, match=r"Trainer has: the hook on_train_start\(\), the hook setup\(\); leave"
    ):
        trainer_of(net)
    with pytest.raises(TypeError, match="automatic_optimization=False"):
        trainer_of(lightning_with(automatic_optimization=False))


def halved(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    ("returned", "unit"),
    [
        (lambda sgd: {"optimizer": sgd, "lr_scheduler": halved(sgd)}, "epochs"),
        (
            lambda sgd: ([sgd], [{"scheduler": halved(sgd), "interval": "step", "name": "rate"}]),
            "batches",
        ),
    ],
)
def test_schedulers_of_configure_optimizers_are_those_of_build(returned, unit):
    def configure(self):
        return returned(torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9))

    ours = trainer_of(lightning_with(configure_optimizers=configure))
    theirs = trainer_of(Lightning(), schedule=Schedule(halved, unit=unit))
    bits = [trainer.fit(*blocked(X, Y, 4), **STILL) for trainer in (ours, theirs)]
    assert_same_bits(*bits)
    rates = [record["lr"] for record in ours.history]
    assert rates == [record["lr"] for record in theirs.history] == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize(
    ("returned", "name"),
    [
        (lambda sgd: {"optimizer": sgd, "lr_scheduler": 1}, "schedule="),
        (lambda sgd: ([sgd], [1]), "schedule="),
        (lambda sgd: [sgd, sgd], "several optimizers"),
        (
            lambda sgd: {
                "optimizer": sgd,
                "lr_scheduler": {"scheduler": halved(sgd), "strict": False},
            },
            "strict=False",
        ),
        (
            lambda sgd: {
                "optimizer": sgd,
                "lr_scheduler": {"scheduler": halved(sgd), "frequency": 2},
            },
            "frequency=2",
        ),
        (
            lambda sgd: {
                "optimizer": sgd,
                "lr_scheduler": {"scheduler": halved(sgd), "opt_idx": 0},
            },
            "opt_idx=0; leave it out",
        ),
        (lambda sgd: ([sgd], [halved(sgd), halved(sgd)]), "at most one scheduler"),
        (lambda sgd: ([sgd], [{"scheduler": halved(sgd), "interval": "day"}]), "interval='day'"),
    ],
)
def test_other_results_of_configure_optimizers_are_errors(returned, name, raises):
    def configure(self):
        return returned(torch.optim.SGD(self.parameters(), lr=0.1))

    with raises(TypeError, name):
        trainer_of(lightning_with(configure_optimizers=configure))
    trainer_of(
        lightning_with(
            configure_optimizers=lambda self: [torch.optim.SGD(self.parameters(), lr=0.1)]
        )
    )


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)


@pytest.mark.parametrize(
    "returned",
    [
        lambda sgd: {"optimizer": sgd, "lr_scheduler": plateau(sgd), "monitor": "val_score"},
        lambda sgd: {
            "optimizer": sgd,
            "lr_scheduler": {"scheduler": plateau(sgd), "monitor": "val_score", "strict": True},
        },
        lambda sgd: ([sgd], [{"scheduler": plateau(sgd), "monitor": "val_score"}]),
        lambda sgd: {"optimizer": sgd, "lr_scheduler": [plateau(sgd)], "monitor": "val_score"},
    ],
)
def test_a_plateau_is_of_what_the_module_monitors(returned):
    def configure(self):
        return returned(torch.optim.SGD(self.parameters(), lr=0.08))

    def validation_step(self, batch, batch_idx):
        loss = Lightning.training_step(self, batch, batch_idx)
        self.log("val_score", 1.0)
        return loss

    methods = {"configure_optimizers": configure, "validation_step": validation_step}
    trainer = trainer_of(lightning_with(**methods))
    epochs = {**STILL, "num_epochs": 4}
    trainer.fit(*blocked(X, Y, 4), **epochs, validation_data=(X, Y))
    assert [record["lr"] for record in trainer.history] == pytest.approx([0.08, 0.08, 8e-3, 8e-4])
    trainer = trainer_of(lightning_with(**methods))
    with pytest.raises(ValueError, match="records have no 'val_score' but"):
        trainer.fit(*blocked(X, Y, 4), **epochs)


@pytest.mark.parametrize(
    ("returned", "name"),
    [
        (None, "returned None without a loss"),
        ({"error": 1}, "returned a dict of 'error' without a loss"),
        (lambda loss: {"loss": loss, "round": 1}, "'round' has another meaning"),
        (
            lambda loss: {"loss": loss, "each": loss.repeat(2)},
            "'each' was measured as a tensor of shape (2,)",
        ),
        (lambda loss: loss.repeat(2), "one number a batch"),
    ],
)
def test_wrong_results_are_errors(returned, name, raises):
    def wrong(model, batch, context):
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        return returned(loss) if callable(returned) else returned

    with raises((TypeError, ValueError), name):
        trainer_of(mlp(), SGD, training_step=wrong).check_fit(X, Y, num_epochs=1, batch_size=20)


def test_wrong_arguments_are_errors_of_build(raises):
    two = {"a": mlp(), "b": mlp()}
    both = {"a": SGD, "b": SGD}
    for arguments, options, name in [
        ((mlp(),), {}, "needs a loss"),
        ((mlp(), SGD), {}, "needs a loss"),
        ((mlp(), None, "mse"), {}, "needs an optimizer"),
        ((mlp(), SGD), {"training_step": 3}, "training_step=3"),
        ((mlp(), SGD), {"training_step": "stepp"}, "training_step='stepp'"),
        ((two, both, "mse"), {}, "training_step="),
        ((two, {"a": SGD, "c": SGD}), {"training_step": step}, "'c', which is not a module"),
        (
            (two, both),
            {"training_step": step, "gradients": Gradients(accumulate=2)},
            "accumulate=2",
        ),
        (
            (two, both),
            {"training_step": step, "gradients": Gradients(on_nan="skip")},
            "on_nan='skip'",
        ),
        ((mlp(), SGD), {"training_step": step, "class_weight": [1, 2]}, "class_weight="),
    ]:
        with raises((TypeError, ValueError), name):
            trainer_of(*arguments, **options)
    shared = nn.ModuleDict(two)
    shared["b"][0] = shared["a"][0]
    with pytest.raises(ValueError, match="'a' and 'b' would train the same parameters"):
        trainer_of(shared, both, training_step=step)


def test_what_a_dict_of_modules_cannot_do_is_an_error():
    trainer = gan()
    for call in (trainer.evaluate, lambda *pair: trainer.fit(X, Y, **STILL, validation_data=pair)):
        with pytest.raises(ValueError, match=r"built without loss=.*validation_step="):
            call(X, Y)
    with pytest.raises(ValueError, match=r"a ModuleDict has no forward.*trainer.model\(\)"):
        trainer.predict(X)


def loss_of(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def clipping_norm(model, batch, context):
    loss = loss_of(model, batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


class ClippingValue:
    def __call__(self, model, batch, context):
        loss = loss_of(model, batch)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        return loss


@pytest.mark.parametrize("step", [clipping_norm, ClippingValue(), partial(clipping_norm)])
def test_a_step_that_clips_gradients_before_they_are_computed_is_warned_of(step):
    with pytest.warns(UserWarning, match="nothing is clipped: give gradients=Gradients"):
        trainer_of(mlp(), SGD, training_step=step)


@pytest.mark.filterwarnings("error")
def test_a_step_may_clip_gradients_that_it_has_computed():
    def step(model, batch, context):
        model(batch[0]).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss_of(model, batch)

    trainer_of(mlp(), SGD, training_step=step)


def test_gradients_that_update_would_lose_are_an_error():
    """``update`` steps with the gradients of its loss alone."""

    def step(model, batch, context):
        (x, y), cross_entropy = batch, nn.functional.cross_entropy
        if context.number == 2:
            cross_entropy(model["a"](x), y).backward()
        loss = cross_entropy(model["a"](x), y)
        context.update("a", loss)
        context.update("a", cross_entropy(model["a"](x), y))
        return loss

    trainer = DistributedTrainer(1, engine="serial", seed=0)
    trainer.build({"a": nn.Linear(6, 3), "b": nn.Linear(3, 1)}, {"a": SGD}, training_step=step)
    trainer.fit(X[:40], Y[:40], num_epochs=1, batch_size=20, progress=False)
    with pytest.raises(
        ValueError, match=r"called backward\(\) before context\.update\('a', loss\)"
    ):
        trainer.fit(X[:20], Y[:20], num_epochs=1, batch_size=20, progress=False)


@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_a_step_that_updates_none_of_several_optimizers_is_an_error(method):
    def only_returns(model, batch, context):
        return nn.functional.cross_entropy(model["a"](batch[0]), batch[1])

    trainer = DistributedTrainer(1, engine="serial", seed=0)
    trainer.build(
        {"a": nn.Linear(6, 3), "b": nn.Linear(3, 1)},
        {"a": SGD, "b": SGD},
        training_step=only_returns,
    )
    with pytest.raises(
        ValueError, match=r"updated none of the optimizers.* context.update\(name, loss\) for a, b"
    ):
        getattr(trainer, method)(X, Y, num_epochs=1, batch_size=20)
