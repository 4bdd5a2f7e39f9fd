"""The law of metrics that accumulate: what workers measure on parts is, merged, what one measures
on all.
"""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import Metric
from torchmetrics.aggregation import MaxMetric, MeanMetric, MinMetric, SumMetric
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanAbsoluteError, PearsonCorrCoef, R2Score
from torchmetrics.wrappers import ClasswiseWrapper

from compss_train.engines.codec import decode, encode
from compss_train.model.measurements import MetricAccumulator, measured_number
from compss_train.model.resolving import resolve_metrics
from compss_train.model.training_step import StepResult

CLASSES = 3


def of_errors(kind):
    """Make an aggregation of numbers a metric: of how far outputs are from targets."""

    class OfErrors(kind):
        def update(self, output, target):
            super().update((output - target).abs())

    return OfErrors()


class MeanOfBatches(Metric):
    """A state that is the mean of what batches give, as torchmetrics' reduction "mean" has it."""

    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), "mean")

    def update(self, output, target):
        self.value += (output.mean() - self.value) / self._update_count

    def compute(self):
        return self.value


class Longest(Metric):
    """A reduction of one's own over tensors, and one over a list."""

    def __init__(self):
        super().__init__()
        self.add_state("length", torch.tensor(0), lambda lengths: lengths.max(dim=0).values)
        self.add_state("norms", [], lambda norms: sum(norms))
        self.add_state("all", torch.zeros(0), "cat")

    def update(self, output, target):
        self.length = torch.maximum(self.length, torch.tensor(len(output)))
        self.norms.append(output.norm() ** 2)
        self.all = torch.cat([self.all, target])

    def compute(self):
        norms = self.norms if isinstance(self.norms, torch.Tensor) else sum(self.norms)
        return {"length": self.length, "norm": norms, "sorted": self.all.sort().values}


CLASSIFIED = [
    MulticlassAccuracy(num_classes=CLASSES),
    MulticlassF1Score(num_classes=CLASSES, average="macro"),
    MulticlassAUROC(num_classes=CLASSES),
    MulticlassAUROC(num_classes=CLASSES, thresholds=20),
    MulticlassConfusionMatrix(num_classes=CLASSES),
    ClasswiseWrapper(MulticlassF1Score(num_classes=CLASSES, average=None)),
]
REGRESSED = [
    *map(of_errors, (MeanMetric, SumMetric, MaxMetric, MinMetric)),
    MeanOfBatches(),
    Longest(),
    MeanAbsoluteError(),
    PearsonCorrCoef(),
    R2Score(),
    R2Score() + MeanAbsoluteError(),
]
BINARY = [BinaryAUROC(), BinaryAveragePrecision(thresholds=None)]


def batch(kind, random, samples):
    """Return outputs and targets."""
    if kind == "classes":
        return random.normal(size=(samples, CLASSES)), random.integers(CLASSES, size=samples)
    target = random.normal(size=samples)
    output = target + random.normal(size=samples)
    return (
        (1 / (1 + np.exp(-output)), (target > 0).astype(int))
        if kind == "binary"
        else (output, target)
    )


def close_to(value):
    if isinstance(value, dict):
        return {name: close_to(item) for name, item in value.items()}
    return pytest.approx(value.numpy(), rel=1e-4, abs=1e-5)


def measured(measures, batches):
    """Return what a worker reports of batches, on its way through an engine."""
    accumulator = MetricAccumulator(measures)
    for output, target in batches:
        accumulator.add(len(output), StepResult(torch.zeros(()), output, target))
    sums = accumulator.measured()
    return decode(np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in encode(sums)]))


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        *(("classes", metric) for metric in CLASSIFIED),
        *(("numbers", metric) for metric in REGRESSED),
        *(("binary", metric) for metric in BINARY),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@settings(max_examples=5)
@given(
    workers=st.lists(st.lists(st.integers(2, 9), max_size=4), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_merged_states_of_workers_equal_those_of_one(kind, metric, workers, seed):
    random = np.random.default_rng(seed)
    measures = resolve_metrics({"it": metric})
    batches = [
        [[*map(torch.from_numpy, batch(kind, random, size))] for size in sizes] for sizes in workers
    ]
    flat = [batch for of_worker in batches for batch in of_worker]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that did not come
        value = measures.values([measured(measures, of_worker) for of_worker in batches])["it"]
        if not flat:
            assert math.isnan(value)
            return
        alone = copy.deepcopy(metric)
        for output, target in flat:
            alone.update(output, target)
        expected = alone.compute()
    assert value == close_to(expected)


@pytest.mark.parametrize(
    ("output", "target", "metric"),
    [
        (
            torch.rand(5, 3),
            torch.tensor([[0], [1], [2], [1], [0]]),
            MulticlassAccuracy(num_classes=3),
        ),
        (torch.rand(5, 1), torch.rand(5), PearsonCorrCoef()),
        (torch.rand(5, 1), torch.tensor([0, 1, 1, 0, 1]), BinaryAUROC()),
        (torch.rand(5), torch.rand(5, 1), R2Score()),
        (torch.rand(5, 1).bfloat16(), torch.rand(5), MeanAbsoluteError()),
        (
            torch.rand(5, 3, 4),
            torch.zeros(5, 1, 4, dtype=torch.uint8),
            MulticlassAccuracy(num_classes=3),
        ),
    ],
    ids=["classes", "one column", "scores", "column of targets", "bfloat16", "bytes"],
)
def test_outputs_and_targets_of_different_shapes_are_matched(output, target, metric):
    plain = copy.deepcopy(metric)
    is_class = isinstance(metric, MulticlassAccuracy)
    plain.update(
        output.float() if is_class else output.float().flatten(),
        target[:, 0] if is_class else target.flatten(),
    )
    measures = resolve_metrics({"it": metric})
    assert measures.values([measured(measures, [(output, target)])])["it"] == pytest.approx(
        plain.compute().item()
    )


def test_an_exception_of_a_metric_names_it():
    class Wordy(PearsonCorrCoef):
        def compute(self):
            return "much"

    measures = resolve_metrics({"second": Wordy()})
    with pytest.raises(
        TypeError, match="the metric computed a str; the history holds numbers"
    ) as caught:
        measures.values([measured(measures, [(torch.rand(4), torch.rand(4))])])
    assert caught.value.__notes__ == ["Raised by the metric 'second'."]


@pytest.mark.parametrize(
    ("returned", "description"),
    [(torch.ones(3), r"a tensor of shape \(3,\)"), ("good", "a str"), (None, "None")],
)
def test_a_metric_that_returns_no_number_is_an_error(returned, description):
    with pytest.raises(
        TypeError, match=(f"'own' was measured as {description}; measure single numbers, the means")
    ):
        measured_number("own", returned)
