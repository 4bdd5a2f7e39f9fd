"""Measures by name, their errors, and the metrics with EDDL's names."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanSquaredError, R2Score

from compss_train import DistributedTrainer
from compss_train.model.measurements import MetricAccumulator
from compss_train.model.metrics import METRICS
from compss_train.model.resolving import resolve_metrics
from compss_train.model.training_step import StepResult
from tests.helpers.models import (
    MODES,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    named,
)
from tests.helpers.tolerances import sum_error


def mean_output(output, target):
    return output.mean()


COLLECTION = MetricCollection(
    {"f1": MulticlassF1Score(num_classes=3), "r2": R2Score()}, prefix="a_"
)


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        (None, []),
        ([], []),
        ("mae", ["mae"]),
        (mean_output, ["mean_output"]),
        (nn.L1Loss(), ["L1Loss"]),
        (nn.L1Loss, ["L1Loss"]),
        (["mae", mean_output], ["mae", "mean_output"]),
        (("mae", "mse"), ["mae", "mse"]),
        ({"a": "mae", "b": "mae", "c": mean_output}, ["a", "b", "c"]),
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
    ("metric", "error", "name"),
    [
        ("acc", ValueError, "unknown metric 'acc'"),
        (
            [mean_output, "mae", mean_output],
            ValueError,
            "two metrics are called 'mean_output'",
        ),
        (MulticlassF1Score, TypeError, "num_classes"),
        ([R2Score(), COLLECTION, R2Score()], ValueError, "two metrics are called 'r2_score'"),
        ({"loss": mean_output}, ValueError, "metric name 'loss'"),
        ({"seconds": mean_output}, ValueError, "metric name 'seconds'"),
        ({"val_mae": "mae"}, ValueError, "metric name 'val_mae'"),
        ({3: mean_output}, ValueError, "metric name 3"),
        ({"": mean_output}, ValueError, "metric name ''"),
        (3, TypeError, "metric=3"),
        ([None], TypeError, "metric=None"),
        ([["mae"]], TypeError, "metric=['mae']"),
    ],
    ids=named,
)
def test_invalid_metrics_and_used_names_are_errors(metric, error, name, raises):
    with raises(error, name):
        resolve_metrics(metric)


OUTPUT = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize("value", [Fraction(1, 3), 1 / 3, np.float64(1 / 3), 2**24 + 1, True])
def test_any_number_is_measured_in_double_precision(value):
    accumulator = MetricAccumulator(resolve_metrics({"constant": lambda output, target: value}))
    accumulator.add(1, StepResult(torch.zeros(()), torch.zeros(1), torch.zeros(1)))
    assert accumulator.measured().metrics == {"constant": (float(value), 1.0)}


@pytest.mark.parametrize("name", ["accuracy", "categorical_accuracy"])
@pytest.mark.parametrize("form", ["indices", "column", "one-hot"])
def test_accuracy(name, form):
    target = torch.tensor([1, 1, 1], dtype=torch.uint8)
    target = {
        "indices": target,
        "column": target[:, None],
        "one-hot": functional.one_hot(target.long(), 2),
    }[form]
    assert METRICS[name](OUTPUT, target).item() == pytest.approx(2 / 3)


def test_accuracy_of_a_single_output_is_an_error():
    with pytest.raises(ValueError, match="give one output for each class"):
        METRICS["accuracy"](OUTPUT[:, :1], torch.tensor([1, 0, 1]))


def test_errors():
    output = torch.tensor([[1.0], [4.0], [3.0]])
    target = torch.tensor([2, 2, 0])
    assert METRICS["mae"](output, target).item() == pytest.approx(2)
    assert METRICS["mean_absolute_error"] is METRICS["mae"]
    assert METRICS["mse"](output, target).item() == pytest.approx(14 / 3)
    assert METRICS["mre"](output, target).item() == pytest.approx((0.5 + 1 + 3) / 3)
    assert METRICS["mean_relative_error"] is METRICS["mre"]


NAMED = {
    "right": "accuracy",
    "auroc": MulticlassAUROC(num_classes=3),
    "table": MulticlassConfusionMatrix(num_classes=3),
    "micro": MulticlassAccuracy(num_classes=3, average="micro"),
}


def built(engine, workers=3, metric=NAMED, net=awkward_net, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net(), SGD, "cross_entropy", metric, **options)
    return trainer


def test_evaluation_equals_that_of_all_samples_at_once():
    x, y = classification(samples=61)
    trainer = built("serial")
    values = trainer.evaluate(*blocked(x, y, 7), batch_size=4)
    outputs = torch.from_numpy(trainer.predict(x))
    targets = torch.from_numpy(y)
    assert list(values) == ["loss", *NAMED]
    assert values["right"] == pytest.approx((outputs.argmax(1) == targets).float().mean().item())
    for name in ("auroc", "table", "micro"):
        NAMED[name].update(outputs, targets)
        assert values[name] == pytest.approx(
            np.asarray(NAMED[name].compute()), abs=sum_error(np.float32, len(x))
        )
        NAMED[name].reset()
    assert values["micro"] == pytest.approx(values["right"])


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_records_have_metrics_of_all_workers_and_of_validation(merge):
    x, y = classification(samples=75)
    trainer = built("serial")
    trainer.fit(
        *blocked(x[:60], y[:60], 5),
        num_epochs=2,
        batch_size=5,
        merge=merge,
        validation_data=(x[60:], y[60:]),
    )
    assert json.loads(json.dumps(trainer.history)) == trainer.history
    for record in trainer.history:
        assert {"loss", *NAMED} <= set(record)
        for measured in (record, *record["workers"]):
            table = np.array(measured["table"])
            assert table.sum() == measured["samples"]
            assert np.trace(table) / table.sum() == pytest.approx(measured["micro"])
            assert measured["right"] == pytest.approx(measured["micro"])
            assert 0 <= measured["auroc"] <= 1
        np.testing.assert_array_equal(
            record["table"], sum(np.array(w["table"]) for w in record["workers"])
        )
        assert np.sum(record["val_table"]) == 15
    evaluated = trainer.evaluate(x[60:], y[60:])
    assert {f"val_{name}": value for name, value in evaluated.items()} == {
        name: value for name, value in trainer.history[-1].items() if name.startswith("val_")
    }


@pytest.mark.slow  # each process imports torchmetrics
@pytest.mark.filterwarnings("ignore:No positive samples")
def test_every_engine_measures_the_same_without_changing_training(shared_local):
    x, y = classification(samples=57)
    for mode in MODES[1:3]:
        options = {"num_epochs": 2, "batch_size": 4, "shuffle": "total", **mode}
        serial = built("serial")
        local = built(shared_local)
        unmeasured = built("serial", metric=None)
        trained = [
            trainer.fit(*blocked(x, y, 7), **options) for trainer in (serial, local, unmeasured)
        ]
        assert_same_bits(trained[0], trained[1])
        assert_same_bits(trained[0], trained[2])
        measured = [[[r[name] for name in NAMED] for r in t.history] for t in (serial, local)]
        assert measured[0] == measured[1]


def test_an_exception_of_a_metric_in_a_worker_names_it(shared_local):
    def broken(output, target):
        raise KeyError("not there")

    x, y = classification()
    with pytest.raises(KeyError) as caught:
        built(shared_local, metric={"mine": broken}).evaluate(x, y)
    assert "Raised by the metric 'mine'." in caught.value.__notes__
