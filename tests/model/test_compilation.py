"""Compiled networks: their own names, one compilation for all copies and batch sizes, and the bits
of a plain fit.

The backend ``eager`` traces the network as ``torch.compile`` does, and runs that with the same
kernels.
"""

import numpy as np
import pytest
import torch

from compss_train import DistributedTrainer, Gradients
from tests.helpers.models import SGD, assert_close, assert_same_bits, awkward_net, mlp
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.helpers.tolerances import sgd_error

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
    """Two rounds, three workers, seven blocks, with dropout and BatchNorm; also evaluated and
    predicted.
    """
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
    ("value", "error", "name"),
    [
        ("yes", TypeError, "compile='yes'"),
        ({"modus": "max-autotune"}, ValueError, "compile="),
        ({"mode": "fastest"}, ValueError, "compile={'mode': 'fastest'}"),
        ({"backend": "icc"}, ValueError, "compile={'backend': 'icc'}"),
    ],
    ids=str,
)
def test_unknown_options_are_refused(value, error, name, raises):
    with raises(error, name):
        trainer_of(compile=value)


def test_a_network_that_is_compiled_already_is_refused():
    with pytest.raises(ValueError, match=r"_orig_mod.*build\(compile=True\)"):
        DistributedTrainer(1, engine="serial").build(
            torch.compile(mlp(), backend="eager"), SGD, "cross_entropy"
        )


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
    assert_close(
        results[0], results[2], sgd_error(np.float32, 12, SGD["lr"], samples=6, momentum=0.9)
    )
