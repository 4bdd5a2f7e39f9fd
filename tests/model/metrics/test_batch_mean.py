import pytest
import torch
from torch.nn import functional

from compss_train.model.metric_kinds import METRICS

OUTPUT = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize("name", ["accuracy", "categorical_accuracy"])
@pytest.mark.parametrize("form", ["indices", "column", "one-hot"])
def test_accuracy(name, form):
    target = torch.tensor([1, 1, 1], dtype=torch.uint8)
    target = {"indices": target, "column": target[:, None], "one-hot": functional.one_hot(target.long(), 2)}[form]
    assert METRICS[name](OUTPUT, target).item() == pytest.approx(2 / 3)


def test_accuracy_of_a_single_output_is_an_error():
    with pytest.raises(ValueError, match="needs one output for each class"):
        METRICS["accuracy"](OUTPUT[:, :1], torch.tensor([1, 0, 1]))


def test_errors():
    output, target = torch.tensor([[1.0], [4.0], [3.0]]), torch.tensor([2, 2, 0])
    assert METRICS["mae"](output, target).item() == pytest.approx(2)
    assert METRICS["mean_absolute_error"] is METRICS["mae"]
    assert METRICS["mse"](output, target).item() == pytest.approx(14 / 3)
    assert METRICS["mre"](output, target).item() == pytest.approx((0.5 + 1 + 3) / 3)
    assert METRICS["mean_relative_error"] is METRICS["mre"]
