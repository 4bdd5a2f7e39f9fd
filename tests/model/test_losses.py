import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train.model.losses import LOSSES, categorical_cross_entropy
from compss_train.model.resolving import resolve_loss
from tests.helpers.tolerances import sum_error

torch.manual_seed(0)
LOGITS = torch.randn(7, 4)
PROBABILITIES = LOGITS.softmax(dim=1)
INDICES = torch.tensor([0, 1, 2, 3, 0, 1, 2])
ONE_HOT = functional.one_hot(INDICES, 4)
ROUNDING = sum_error(np.float32, LOGITS.numel())
CE = functional.cross_entropy(LOGITS, INDICES)


@pytest.mark.parametrize("name", ["cross_entropy", "ce", "softmax_cross_entropy"])
@pytest.mark.parametrize(
    "target",
    [INDICES, INDICES.to(torch.uint8), INDICES.int()[:, None], ONE_HOT, ONE_HOT.double()],
    ids=str,
)
def test_cross_entropy_takes_logits_with_indices_or_soft_targets(name, target):
    assert LOSSES[name](LOGITS, target).item() == pytest.approx(CE.item(), rel=ROUNDING)


@pytest.mark.parametrize("name", ["categorical_cross_entropy", "cce", "soft_cross_entropy", "sce"])
@pytest.mark.parametrize("target", [INDICES, ONE_HOT], ids=["indices", "one-hot"])
def test_categorical_cross_entropy_takes_probabilities(name, target):
    assert LOSSES[name](PROBABILITIES, target).item() == pytest.approx(CE.item(), rel=ROUNDING)
    assert LOSSES[name](torch.zeros(7, 4), target).isfinite()


@pytest.mark.parametrize("name", ["mse", "mean_squared_error"])
def test_mean_squared_error(name):
    target = torch.randn(7, 4, dtype=torch.float64)
    assert LOSSES[name](LOGITS, target).item() == pytest.approx(
        ((LOGITS - target) ** 2).mean().item(), rel=ROUNDING
    )
    assert LOSSES[name](LOGITS[:, :1], INDICES).item() == pytest.approx(
        ((LOGITS[:, 0] - INDICES) ** 2).mean().item(), rel=ROUNDING
    )


@pytest.mark.parametrize("name", ["bce", "binary_cross_entropy"])
def test_binary_cross_entropy_takes_probabilities(name):
    p = PROBABILITIES[:, :1]
    target = INDICES % 2
    expected = functional.binary_cross_entropy(p[:, 0], target.float()).item()
    assert LOSSES[name](p, target).item() == pytest.approx(expected, rel=ROUNDING)
    with torch.autocast("cpu", torch.bfloat16):
        assert LOSSES[name](p, target).item() == pytest.approx(expected, rel=ROUNDING)


def test_dice_is_zero_for_same_and_one_for_disjoint_masks():
    mask = torch.tensor([[[1, 1], [0, 0]], [[0, 1], [1, 0]]])
    dice = LOSSES["dice"]
    assert dice(mask.float(), mask).item() == pytest.approx(0, abs=1e-6)
    assert dice(1 - mask.float(), mask).item() == pytest.approx(1, abs=1e-6)
    half = torch.tensor([[1.0, 0.0]])
    assert dice(half, torch.tensor([[1, 1]])).item() == pytest.approx(1 - 2 / 3)


def test_cross_entropy_of_a_single_output_is_an_error():
    with pytest.raises(ValueError, match="give one output for each class"):
        LOSSES["ce"](LOGITS[:, :1], torch.ones(7, 1))


def test_targets_of_other_shapes_are_errors():
    with pytest.raises(
        ValueError, match=r"targets of torch.float32 \(7,\) do not match outputs \(7, 4\)"
    ):
        LOSSES["ce"](LOGITS, INDICES.float())
    with pytest.raises(ValueError, match=r"targets have shape \(7,\) and outputs \(7, 4\)"):
        LOSSES["mse"](LOGITS, INDICES)


@pytest.mark.parametrize("name", ["mse", "bce", "dice"])
def test_only_dimensions_of_1_may_differ(name):
    """Reshaped to (n, 3, 4, 4), targets (n, 4, 4, 3) would have their channels and pixels mixed."""
    output = torch.rand(5, 3, 4, 4)
    for shape in [(5, 4, 4, 3), (5, 48), (240,), (15, 1, 4, 4), (5, 3, 16)]:
        with pytest.raises(
            ValueError, match=rf"targets have shape \({shape[0]}.* only dimensions of 1 may differ"
        ):
            LOSSES[name](output, torch.ones(shape))
    expected = pytest.approx(
        LOSSES[name](output, torch.ones(5, 3, 4, 4)).item(), rel=sum_error(np.float32, 240)
    )
    for shape in [(5, 1, 3, 4, 4), (5, 3, 4, 4, 1), (5, 3, 1, 4, 1, 4)]:
        assert LOSSES[name](output, torch.ones(shape)).item() == expected
        assert LOSSES[name](output.reshape(shape), torch.ones(5, 3, 4, 4)).item() == expected


def test_names_classes_and_callables():
    def function(output, target):
        return output.sum()

    assert resolve_loss(function) is function
    assert isinstance(resolve_loss(nn.L1Loss), nn.L1Loss)
    with pytest.raises(
        ValueError, match=("unknown loss 'crossentropy'; choose one of mean_squared_error, mse")
    ):
        resolve_loss("crossentropy")
    with pytest.raises(ValueError, match=r"or pass a callable; did you mean cross_entropy\?"):
        resolve_loss("crossentropy")
    with pytest.raises(TypeError, match="neither a name nor a callable"):
        resolve_loss(3)


@pytest.mark.parametrize("outputs", [[[-0.1, 1.1]], [[0.5, 1.02]], [[-1e-3, 0.5]]])
def test_outputs_that_are_not_probabilities_are_errors(outputs):
    with pytest.raises(
        ValueError, match=("are not probabilities; end the network with a softmax, or use the loss")
    ):
        categorical_cross_entropy(torch.tensor(outputs), torch.tensor([1]))
