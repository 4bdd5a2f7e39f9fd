"""Callbacks that use the network given to ``build``, which no fit trains, are warned of."""

import pytest

from compss_train.callbacks import Callback
from tests.helpers.models import SGD, mlp, state_arrays
from tests.helpers.small_fits import fit, trainer_of

UNTRAINED = mlp()


class ByRound(Callback):
    def on_round_end(self, trainer, record):
        self.saved = state_arrays(UNTRAINED)


class AtTheEnd(Callback):
    def __init__(self, held=None):
        self.held = held
        self.trainer = None

    def on_fit_start(self, trainer, total_samples):
        self.trainer = trainer

    def on_fit_end(self, trainer):
        pass


class Loading(ByRound):
    """Keeps the network that it holds up to date."""

    def on_round_end(self, trainer, record):
        UNTRAINED.load_state_dict(trainer.model().state_dict())


def fit_given(*callbacks, net=UNTRAINED):
    trainer = trainer_of(net=net, optimizer=SGD)
    fit(trainer, *callbacks)
    return trainer


@pytest.mark.parametrize(
    "callback", [ByRound, lambda: AtTheEnd([UNTRAINED]), lambda: AtTheEnd(UNTRAINED[0])]
)
def test_a_callback_that_uses_the_network_that_was_given_is_warned_of_once(callback):
    match = r"given to build.* still as it was: use trainer\.model\(\)"
    with pytest.warns(UserWarning, match=match) as told:
        fit_given(callback())
    assert len(told) == 1


@pytest.mark.filterwarnings("error")
def test_other_uses_of_networks_are_not_warned_of():
    fit_given(AtTheEnd(mlp()), AtTheEnd(), Loading())
    fit_given(ByRound(), net=mlp())
    again = AtTheEnd()
    fit_given(again)
    fit_given(again)  # which holds a trainer that knows the network
