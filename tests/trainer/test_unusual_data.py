"""Arrays, tensors and networks that look right and are not: an error that says what to give, before
any task.
"""

import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train import BlockedTensor, BufferSpec, Merge
from compss_train.model.loss_warnings import are_log_probabilities, are_probabilities
from tests.helpers.callbacks import NoTasks
from tests.helpers.models import SGD, assert_same_bits, blocked, classification, mlp
from tests.helpers.small_fits import trainer_of

X, Y = classification()
TENSOR = torch.from_numpy(X)
GOOD = {"num_epochs": 1, "batch_size": 5, "progress": False}


@pytest.fixture
def trainer():
    return trainer_of(NoTasks(), 2, optimizer=SGD)


def ragged(layout):
    return torch.nested.nested_tensor([torch.zeros(length, 6) for length in (2, 3)], layout=layout)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: np.ma.masked_greater(X, 1),
            r"is a masked array.*give array.filled\(value\).* sample_weight",
        ),
        (lambda: [np.ma.masked_greater(row, 1) for row in X], "is a masked array"),
        (
            lambda: scipy.sparse.csr_array(X),
            r"a csr_array, which is sparse; give array.toarray\(\)",
        ),
        (
            lambda: scipy.sparse.coo_matrix(X),
            r"a coo_matrix, which is sparse; give array.toarray\(\)",
        ),
        (lambda: TENSOR.to_sparse(), r"torch\.sparse_coo on cpu; give .* tensor\.to_dense\(\)"),
        (lambda: TENSOR.to_sparse_csr(), r"torch\.sparse_csr on cpu; give .* tensor\.to_dense\(\)"),
        (
            lambda: ragged(torch.strided),
            r"is a nested tensor.*torch.nested.to_padded_tensor\(tensor, 0.0\)",
        ),
        (lambda: ragged(torch.jagged), "is a nested tensor"),
        (lambda: TENSOR.to("meta"), "is a tensor of .* on meta; give a dense one"),
        (
            lambda: torch.quantize_per_tensor(TENSOR, 0.1, 0, torch.qint8),
            r"of torch\.qint8.* tensor\.dequantize\(\)",
        ),
        (
            lambda: [[[1.0, 2.0]], [[3.0], [4.0]]],
            "cannot make an array of this list: .*inhomogeneous.*samples must have the same shape",
        ),
        (
            lambda: [torch.zeros(5, requires_grad=True)] * 2,
            ("cannot make an array of this list: .*requires grad"),
        ),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors",
    "ignore:torch.quantize_per_tensor",
    "ignore:Sparse CSR tensor support",
)
def test_data_that_are_no_plain_array(trainer, make, message):
    value = make()
    for call in (
        lambda: trainer.fit(value, Y, **GOOD),
        lambda: trainer.fit(X, value, **GOOD),
        lambda: trainer.fit(X, Y, **GOOD, sample_weight=value),
        lambda: trainer.predict(value),
        lambda: BlockedTensor([[value]]),
    ):
        with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
            call()


@pytest.mark.parametrize(
    "kind", [np.asarray, torch.as_tensor, lambda w: BlockedTensor.from_array(w, (2, 1))]
)
def test_weights_that_are_all_0_are_an_error(trainer, kind, tmp_path):
    with pytest.raises(
        ValueError, match=("sample_weight is 0 for every sample, so nothing would be trained")
    ):
        trainer.fit(X, Y, **GOOD, sample_weight=kind(np.zeros(60)))
    np.save(tmp_path / "weights.npy", np.zeros(60))
    mapped = BlockedTensor.from_array(np.load(tmp_path / "weights.npy", mmap_mode="r"), (2, 1))
    with pytest.raises(ValueError, match="sample_weight is 0 for every sample"):
        trainer.fit(X, Y, **GOOD, sample_weight=mapped)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda array: array + 1j, "'0.weight' has dtype complex"),
        (
            lambda array: array + 0.5,
            ("'1.num_batches_tracked' has dtype float64, but int64 in the network"),
        ),
        (lambda array: array.astype(str), "'0.weight' has dtype <U"),
        (lambda array: array.astype(object), "'0.weight' has dtype object"),
    ],
)
def test_parameters_that_are_others(trainer, change, name, raises):
    before = trainer.get_parameters()
    with raises(ValueError, name):
        trainer.set_parameters({name: change(array) for name, array in before.items()})
    after = trainer.get_parameters()
    assert {name: after[name].tobytes() for name in before} == {
        name: before[name].tobytes() for name in before
    }


class Loss:
    """A loss by function of its value."""

    def __init__(self, change):
        self.change = change

    def __call__(self, output, target):
        return self.change(nn.functional.cross_entropy(output, target))


NO_TENSOR = r"the loss must be one number a batch in a tensor.*leave out \.item\(\)"
NO_GRADIENT = "the loss has no gradient"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (torch.Tensor.tolist, ValueError, NO_TENSOR),
        (lambda loss: None, ValueError, "not None; take its mean"),
        (lambda loss: loss.detach().numpy(), ValueError, NO_TENSOR),
        (lambda loss: (loss, loss), ValueError, NO_TENSOR),
        (torch.Tensor.detach, ValueError, NO_GRADIENT),
        (lambda loss: (loss > 0).sum(), ValueError, NO_GRADIENT),
        (
            lambda loss: loss.expand(6),
            ValueError,
            r"one number a batch .*not a tensor of shape \(6,\)",
        ),
    ],
)
def test_losses_that_cannot_be_trained_on(change, error, message):
    trainer = trainer_of(workers=2, net=mlp, optimizer=SGD, loss=Loss(change), metric=None)
    for method in (trainer.fit, trainer.check_fit):
        with pytest.raises(error, match=f"(?s){message}"):
            method(*blocked(X, Y, 2), **GOOD)


def test_a_loss_may_have_a_dimension():
    losses = Loss(lambda loss: loss.reshape(1)), "cross_entropy"
    assert_same_bits(*(fit(built(mlp(), loss)) for loss in losses))


def reduced(output, target, reduction="mean"):
    return 0.5


def test_weighted_losses_that_return_floats():
    trainer = trainer_of(workers=2, net=mlp, optimizer=SGD, loss=reduced, metric=None)
    with pytest.raises(ValueError, match="reduction='none' returned a float for"):
        trainer.fit(X, Y, **GOOD, sample_weight=np.ones(60))


XB, YB = blocked(*classification(), 4)
WARNING = (
    "remove the softmax at the end of the network, or build with loss='categorical_cross_entropy'"
)
MERGES = [
    {"merge": "synchronous"},
    {"merge": Merge("synchronous", every=2, unit="batches"), "buffer": BufferSpec("FIFO", 32)},
    {"merge": "commutative"},
    {"merge": "parameter_server"},
]


def soft() -> nn.Module:
    return nn.Sequential(mlp(), nn.Softmax(dim=1))


def built(net, loss, engine="serial", **options):
    return trainer_of(
        engine, 2, seed=3, net=lambda: net, optimizer=SGD, loss=loss, metric=None, **options
    )


def fit(trainer, **options):
    return trainer.fit(XB, YB, num_epochs=3, batch_size=5, progress=False, **options)


def raised(function, *args, text=WARNING, **options):
    """Return the messages of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **options)
    return [str(each.message) for each in caught if text in str(each.message)]


@pytest.mark.parametrize("merge", MERGES, ids=str)
def test_a_fit_warns_once(merge):
    trainer = built(soft(), "cross_entropy")
    assert len(raised(fit, trainer, **merge)) == 1
    assert len(raised(fit, trainer, **merge)) == 1


def untold(output, target):
    return functional.cross_entropy(output, target)


def test_losses_of_logits_warn_and_train_to_the_same_bits():
    expected = fit(built(soft(), untold))  # no known loss of logits
    for loss in (
        *(
            "cross_entropy",
            "ce",
            "softmax_cross_entropy",
            functional.cross_entropy,
            nn.CrossEntropyLoss(),
        ),
        partial(functional.cross_entropy, label_smoothing=0.0),
        nn.CrossEntropyLoss(label_smoothing=0.0),
    ):
        trainer = built(soft(), loss)
        assert len(raised(fit, trainer)) == 1
        assert_same_bits(trainer.get_parameters(), expected)


@pytest.mark.parametrize(
    "loss",
    [nn.NLLLoss(), partial(functional.nll_loss, reduction="mean")],
    ids=["module", "function"],
)
@pytest.mark.parametrize(
    ("last", "warns"), [(nn.Identity(), 1), (nn.Softmax(dim=1), 1), (nn.LogSoftmax(dim=1), 0)]
)
def test_losses_of_log_probabilities_warn_of_other_outputs(loss, last, warns):
    trainer = built(nn.Sequential(mlp(), last), loss)
    assert (
        len(raised(fit, trainer, text="end the network with torch.nn.LogSoftmax(dim=1)")) == warns
    )


def test_the_warning_points_to_the_caller(shared_local):
    with pytest.warns(UserWarning, match=WARNING) as caught:
        fit(built(soft(), "ce", shared_local))
    assert [each.filename for each in caught] == [__file__]


@given(
    st.integers(1, 20),
    st.integers(2, 200),
    st.floats(-5, 5),
    st.sampled_from(["float16", "bfloat16", "float32"]),
)
def test_every_softmax_gives_probabilities_and_its_logits_are_none(samples, classes, scale, dtype):
    logits = (
        torch.randn(samples, classes, generator=torch.Generator().manual_seed(samples)) * 10**scale
    )
    rounded = logits.softmax(dim=1).to(getattr(torch, dtype))
    assert are_probabilities(rounded)
    assert are_probabilities(rounded[:, :, None].expand(-1, -1, 4))
    assert not are_probabilities(rounded * 1.1)
    assert not are_probabilities(rounded - rounded.max() / 2)
    assert not are_probabilities(torch.full_like(rounded, torch.nan))
    assert are_log_probabilities(logits.log_softmax(dim=1).to(rounded.dtype))
    assert not are_log_probabilities(rounded)
