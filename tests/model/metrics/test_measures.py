"""Measures by name, their errors, and the metrics with EDDL's names."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryROC, MulticlassF1Score
from torchmetrics.regression import MeanSquaredError, R2Score

from compss_train import DistributedTrainer, NotBuiltError
from compss_train.model.losses import METRICS
from compss_train.model.metrics import Measures, MetricAccumulator, resolve_metrics
from tests.helpers.models import SGD, mlp, named


def own(output, target):
    return output.mean()


COLLECTION = MetricCollection({"f1": MulticlassF1Score(num_classes=3), "r2": R2Score()}, prefix="a_")


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        (None, []),
        ([], []),
        ("mae", ["mae"]),
        (own, ["own"]),
        (nn.L1Loss(), ["L1Loss"]),
        (nn.L1Loss, ["L1Loss"]),
        (["mae", own], ["mae", "own"]),
        (("mae", "mse"), ["mae", "mse"]),
        ({"a": "mae", "b": "mae", "c": own}, ["a", "b", "c"]),
        (BinaryAUROC(), ["binary_auroc"]),
        (MulticlassF1Score(num_classes=3), ["multiclass_f1_score"]),
        (BinaryROC(), ["binary_roc"]),
        ([R2Score(), MeanSquaredError()], ["r2_score", "mean_squared_error"]),
        (COLLECTION, ["a_f1", "a_r2"]),
        (MetricCollection([R2Score(), MeanSquaredError()]), ["R2Score", "MeanSquaredError"]),
        ({"x": COLLECTION, "y": R2Score()}, ["x_a_f1", "x_a_r2", "y"]),
    ],
    ids=named,
)
def test_names_in_the_history(metric, names):
    assert resolve_metrics(metric).names == ("loss", *names)


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        ("acc", ValueError, "unknown metric 'acc'; choose one of mse"),
        ([own, "mae", own], ValueError, "two metrics are called 'own'; .* metric={'own_a': ..., 'own_b': ...}"),
        (MulticlassF1Score, TypeError, "num_classes"),
        ([R2Score(), COLLECTION, R2Score()], ValueError, "two metrics are called 'r2_score'"),
        (
            {"loss": own},
            ValueError,
            "'loss' is not text, or has another meaning.* metric={'my_loss': ...}",
        ),
        ({"seconds": own}, ValueError, "'seconds' is not text, or has another"),
        ({"val_mae": "mae"}, ValueError, "'val_mae' is not text, or has another"),
        ({3: own}, ValueError, "metric name 3 is not text"),
        ({"": own}, ValueError, "metric name '' is not text"),
        (3, TypeError, "metric=3 is neither a name nor a callable"),
        ([None], TypeError, "metric=None is neither a name nor a callable"),
        ([["mae"]], TypeError, r"metric=\['mae'\] is neither a name nor a callable"),
    ],
    ids=named,
)
def test_invalid_metrics_and_used_names_are_errors(metric, error, message):
    with pytest.raises(error, match=message.replace("{", r"\{")):
        resolve_metrics(metric)


def test_measures_of_a_trainer_are_the_names_in_its_records():
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(NotBuiltError):
        trainer.measures  # noqa: B018
    trainer.build(mlp(), SGD, "cross_entropy", ["accuracy", BinaryAUROC()])
    assert trainer.measures == ("loss", "accuracy", "binary_auroc")
    trainer.build(mlp(), SGD, "cross_entropy")
    assert trainer.measures == ("loss",)


def test_numbers_of_no_samples_do_not_count():
    def part(*numbers):
        accumulator = MetricAccumulator(Measures())
        for value, samples in numbers:
            accumulator.measure({"own": value}, samples)
        return accumulator.measured()

    none = part((2.0, 0), (float("nan"), 0))
    assert Measures().values([none, part((1.0, 3), (7.0, 0)), part((5.0, 1))])["own"] == 2.0
    assert math.isnan(Measures().values([none])["own"])


OUTPUT = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize("name", ["accuracy", "categorical_accuracy"])
@pytest.mark.parametrize("form", ["indices", "column", "one-hot"])
def test_accuracy(name, form):
    target = torch.tensor([1, 1, 1], dtype=torch.uint8)
    target = {"indices": target, "column": target[:, None], "one-hot": functional.one_hot(target.long(), 2)}[form]
    assert METRICS[name](OUTPUT, target).item() == pytest.approx(2 / 3)


def test_accuracy_of_a_single_output_is_an_error():
    with pytest.raises(ValueError, match="give one output for each class"):
        METRICS["accuracy"](OUTPUT[:, :1], torch.tensor([1, 0, 1]))


def test_errors():
    output, target = torch.tensor([[1.0], [4.0], [3.0]]), torch.tensor([2, 2, 0])
    assert METRICS["mae"](output, target).item() == pytest.approx(2)
    assert METRICS["mean_absolute_error"] is METRICS["mae"]
    assert METRICS["mse"](output, target).item() == pytest.approx(14 / 3)
    assert METRICS["mre"](output, target).item() == pytest.approx((0.5 + 1 + 3) / 3)
    assert METRICS["mean_relative_error"] is METRICS["mre"]
