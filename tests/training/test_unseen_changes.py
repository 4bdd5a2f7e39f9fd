"""Changes that workers do not see: of the data set in a fit, of functions given to ``build``."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, Subset

from compss_train import BufferSpec
from compss_train.callbacks import Callback
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.online.fits import fit_online


class Scale:
    def __init__(self):
        self.by = 1.0
        self.offsets = [torch.zeros(6)]

    def __call__(self, x):
        return x * np.float32(self.by) + self.offsets[0].numpy()


class Scaled(Dataset):
    def __init__(self):
        self.transforms = [Scale()]
        self.opened = None
        self.noise = float("nan")

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        self.opened = self.opened or open
        return self.transforms[0](X[number]), Y[number]


class Changing(Callback):
    """Calls a function with the data set after each round, or before it."""

    def __init__(self, dataset, change, hook="on_round_end"):
        self.dataset = dataset
        self.change = change
        setattr(self, hook, lambda *_: change(self.dataset))


def set_factor(dataset):
    dataset.transforms[0].by *= 2


def set_tensor(dataset):
    dataset.transforms[0].offsets[0] += 1


def set_object(dataset):
    dataset.transforms[0] = Scale()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (set_factor, "dataset.transforms[0].by"),
        (set_tensor, "dataset.transforms[0].offsets[0]"),
        (set_object, "dataset.transforms[0]"),
    ],
)
@pytest.mark.parametrize("hook", ["on_round_start", "on_round_end"])
def test_a_callback_that_changes_what_workers_read_is_named_once(change, name, hook):
    data = Scaled()
    with pytest.warns(UserWarning, match="worker processes have copies from the start") as told:
        fit(trainer_of(), Changing(data, change, hook), data=(data,))
    assert len(told) == 1
    assert str(told[0].message).startswith(f"Changing changes {name}, but ")


def test_data_to_validate_on_are_named_as_such():
    data = Scaled()
    validation = Subset(data, range(9))
    with pytest.warns(UserWarning, match=r"changes validation_data\.dataset\.transforms\[0\]"):
        fit(trainer_of(), Changing(data, set_factor), validation_data=validation)


def read(dataset):
    return dataset[0]


@pytest.mark.parametrize(
    ("change", "hook"),
    [(read, "on_round_end"), (set_factor, "on_fit_start"), (set_factor, "on_fit_end")],
)
def test_what_changes_nothing_in_the_fit_is_not_warned_of(change, hook):
    data = Scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(trainer_of(), Changing(data, change, hook), data=(data,))


BETA = 1.0
OPTIONS = {"beta": 1.0}


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = 1.0

    def forward(self, output, y):
        return self.beta * cross_entropy(output, y)


def by_number(output, y):
    return BETA * cross_entropy(output, y)


def by_dict(output, y):
    return OPTIONS["beta"] * cross_entropy(output, y)


def scaled(options, output, y):
    return options["beta"] * cross_entropy(output, y)


def closing_over(box):
    def loss(output, y):
        return box[0] * cross_entropy(output, y)

    return loss


def annealed(kind):
    """Return a loss, a function that changes it, and what that is called in a warning."""

    def replace_global(_):
        global BETA
        BETA /= 2

    box = [1.0]
    options = {"beta": 1.0}
    module = Scaling()
    return {
        "attribute": (module, lambda _: setattr(module, "beta", module.beta / 2), "loss.beta"),
        "variable": (closing_over(box), lambda _: box.append(box.pop() / 2), "loss.box[0]"),
        "argument": (
            partial(scaled, options),
            lambda _: options.update(beta=options["beta"] / 2),
            "loss.args[0]['beta']",
        ),
        "global number": (by_number, replace_global, "the global variable 'BETA', which "),
        "global dict": (
            by_dict,
            lambda _: OPTIONS.update(beta=OPTIONS["beta"] / 2),
            "the global variable 'OPTIONS', which ",
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["attribute", "variable", "argument", "global number", "global dict"]
)
def test_a_callback_that_changes_a_function_is_named(kind):
    loss, change, name = annealed(kind)
    trainer = trainer_of(loss=loss, metric=None)
    with pytest.warns(UserWarning, match="from context.epoch in training_step=") as told:
        fit(trainer, Changing(None, change))
    assert len(told) == 1
    assert str(told[0].message).startswith(f"Changing changes {name}")


@pytest.mark.parametrize("kind", ["attribute", "variable", "argument"])
def test_a_function_that_changes_between_fits_is_named_once(kind):
    loss, change, name = annealed(kind)
    trainer = trainer_of(loss=loss, metric=None)
    fit(trainer, Changing(None, change, "on_fit_start"), num_epochs=1)
    fit(trainer, num_epochs=1)
    change(None)
    with pytest.warns(UserWarning, match="or call build again") as told:
        fit(trainer, num_epochs=1)
    assert len(told) == 1
    assert str(told[0].message).startswith(f"{name} has changed since the fit before, but ")
    fit(trainer, num_epochs=1)


def test_numbers_that_are_set_for_workers_are_no_such_changes():
    class Annealing(Callback):
        sets_hyperparameters = True

        def on_round_end(self, trainer, record):
            trainer.set_hyperparameters(attributes={"loss.beta": 0.5 ** record["round"]})

    trainer = trainer_of(loss=Scaling(), metric=None)
    fit(trainer, Annealing())
    fit(trainer, Annealing())


def simulate(number):
    yield from zip(X[number : number + 20], Y[number : number + 20], strict=True)


def test_a_callback_of_fit_online_is_named_as_well(shared_local):
    loss, change, name = annealed("attribute")
    trainer = trainer_of(engine=shared_local, workers=1, loss=loss, metric=None)
    with pytest.warns(UserWarning, match=f"Changing changes {name}"):
        fit_online(
            trainer,
            simulate,
            range(3),
            buffer=BufferSpec("FIFO", 8),
            callbacks=[Changing(None, change)],
        )


def test_a_network_that_a_loss_holds_may_get_what_was_trained():
    net = nn.Linear(6, 3)

    def loss(output, y):
        return cross_entropy(output, y) + net.weight.square().mean()

    def load(trainer):
        net.load_state_dict(trainer.model().state_dict())

    class Loading(Callback):
        def on_round_end(self, trainer, record):
            load(trainer)

    trainer = trainer_of(net=net, loss=loss, metric=None)
    fit(trainer, Loading(), num_epochs=1)
    load(trainer)
    fit(trainer, Loading(), num_epochs=1)
