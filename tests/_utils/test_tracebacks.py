"""Errors of users' code are raised without the frames of the package that lead to it."""

import traceback

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train._utils.tracebacks import without_inner_frames
from compss_train.callbacks import Callback
from tests.helpers.models import classification, mlp
from tests.helpers.small_fits import PLAIN_SGD, trainer_of

X, Y = classification(samples=40)
FIT = {"num_epochs": 1, "batch_size": 10, "progress": False}


def step(model, batch, context):
    return model(batch[0][:, :3]).sum()


def of_all(model, batch, context):
    return model(batch[0]).sum()


def metric(output, target):
    raise KeyError("of the metric")


class Failing(Callback):
    def on_round_end(self, trainer, record):
        raise KeyError("of the callback")


def frames_of(error):
    """Return module and function of each frame below the test's."""
    below = list(traceback.walk_tb(error.__traceback__))[1:]
    return [(frame.f_globals["__name__"], frame.f_code.co_name) for frame, _ in below]


def trainer_with(**build):
    return trainer_of("serial", 2, net=mlp, optimizer=PLAIN_SGD, **build)


MISTAKES = {
    "a step": (
        "step",
        lambda: trainer_with(loss=None, training_step=step).fit(X, Y, **FIT),
    ),
    "a step, tried": (
        "step",
        lambda: trainer_with(loss=None, training_step=step).check_fit(X, Y, **FIT),
    ),
    "validation, tried": (
        "step",
        lambda: trainer_with(loss=None, training_step=of_all, validation_step=step).check_fit(
            X, Y, validation_data=(X, Y), **FIT
        ),
    ),
    "a metric": ("metric", lambda: trainer_with(metric={"m": metric}).fit(X, Y, **FIT)),
    "a callback": (
        "on_round_end",
        lambda: trainer_with().fit(X, Y, callbacks=[Failing()], **FIT),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_users_is_shown_below_their_call(name):
    function, call = MISTAKES[name]
    with pytest.raises((RuntimeError, KeyError)) as caught:
        call()
    # The lambda of the test calls the package, whose one frame stays.
    called, ours, users, *libraries = frames_of(caught.value)
    assert called == (__name__, "<lambda>")
    assert ours[0].startswith("compss_train.")
    assert users == (__name__, function)
    assert all(module.startswith("torch.") for module, _ in libraries)


@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_a_mistake_in_a_librarys_network_names_the_line_that_called_it(method):
    trainer = trainer_with()
    with pytest.raises(RuntimeError) as caught:
        getattr(trainer, method)(X, Y, validation_data=(X[:, :3], Y), **FIT)
    modules = [module for module, _ in frames_of(caught.value)]
    assert modules[:2] == ["compss_train._utils.validation", "compss_train.model.replica"]
    assert all(module.startswith("torch.") for module in modules[2:])


def test_errors_of_the_package_keep_their_frames():
    with pytest.raises(ValueError, match="num_epochs=0") as caught:
        trainer_with().check_fit(X, Y, num_epochs=0, batch_size=10)
    modules = [module for module, _ in frames_of(caught.value)]
    assert "compss_train.training.fit" in modules
    assert len({*modules}) > 2


def test_an_error_without_frames_stays_without():
    assert without_inner_frames(None) is None


def test_any_keyword_of_a_fit_is_accepted_by_check_fit_when_something_else_is_wrong():
    def takes_three(output, target, third):
        return output.sum()

    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(nn.Linear(2, 1), PLAIN_SGD, takes_three)
    with pytest.raises(TypeError, match="third"):
        trainer.check_fit(np.zeros((8, 2), np.float32), torch.zeros(8, 1), **FIT)
    with pytest.raises(TypeError, match="did you mean batch_size"):
        trainer.check_fit(X, Y, num_epochs=1, batchsize=10)
