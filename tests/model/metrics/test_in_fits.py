"""Metrics of fits: in every record, of all workers and of each, of training and of validation."""

import json

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix

from compss_train import DistributedTrainer, Merge
from tests.helpers.models import MODES, SGD, assert_same_bits, awkward_net, blocked, classification

METRICS = {
    "right": "accuracy",
    "auroc": MulticlassAUROC(num_classes=3),
    "table": MulticlassConfusionMatrix(num_classes=3),
    "micro": MulticlassAccuracy(num_classes=3, average="micro"),
}


def built(engine, workers=3, metric=METRICS, net=awkward_net, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net(), SGD, "cross_entropy", metric, **options)
    return trainer


def test_evaluation_equals_that_of_all_samples_at_once(engine):
    x, y = classification(samples=61)
    trainer = built(engine)
    values = trainer.evaluate(*blocked(x, y, 7), batch_size=4)
    outputs, targets = torch.from_numpy(trainer.predict(x)), torch.from_numpy(y)
    assert list(values) == ["loss", *METRICS]
    assert values["right"] == pytest.approx((outputs.argmax(1) == targets).float().mean().item())
    for name in ("auroc", "table", "micro"):
        METRICS[name].update(outputs, targets)
        assert values[name] == pytest.approx(np.asarray(METRICS[name].compute()), abs=1e-6)
        METRICS[name].reset()
    assert values["micro"] == pytest.approx(values["right"])


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_records_have_metrics_of_all_and_each_worker_and_of_validation(engine, merge):
    x, y = classification(samples=75)
    trainer = built(engine)
    trainer.fit(
        *blocked(x[:60], y[:60], 5), num_epochs=2, batch_size=5, merge=merge, validation_data=(x[60:], y[60:])
    )
    assert json.loads(json.dumps(trainer.history)) == trainer.history
    for record in trainer.history:
        assert {"loss", *METRICS} <= set(record)
        for measured in (record, *record["workers"]):
            table = np.array(measured["table"])
            assert table.sum() == measured["samples"]
            assert np.trace(table) / table.sum() == pytest.approx(measured["micro"])
            assert measured["right"] == pytest.approx(measured["micro"])
            assert 0 <= measured["auroc"] <= 1
        np.testing.assert_array_equal(record["table"], sum(np.array(w["table"]) for w in record["workers"]))
        assert np.sum(record["val_table"]) == 15
    evaluated = trainer.evaluate(x[60:], y[60:])
    assert {f"val_{name}": value for name, value in evaluated.items()} == {
        name: value for name, value in trainer.history[-1].items() if name.startswith("val_")
    }


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_every_engine_measures_the_same_without_changing_training(shared_local):
    x, y = classification(samples=57)
    for mode in MODES:
        options = {"num_epochs": 2, "batch_size": 4, "shuffle": "total", **mode}
        serial, local, unmeasured = built("serial"), built(shared_local), built("serial", metric=None)
        trained = [trainer.fit(*blocked(x, y, 7), **options) for trainer in (serial, local, unmeasured)]
        assert_same_bits(trained[0], trained[1])
        assert_same_bits(trained[0], trained[2])
        measured = [[[r[name] for name in METRICS] for r in t.history] for t in (serial, local)]
        assert measured[0] == measured[1]


def test_a_worker_without_samples_in_a_round_is_left_out():
    x, y = classification(samples=30)
    trainer = built("serial", workers=3)
    trainer.fit(*blocked(x, y, 4), num_epochs=1, batch_size=5, merge=Merge(unit="blocks"), shuffle=None)
    assert [len(record["workers"]) for record in trainer.history] == [3, 1]
    assert [np.sum(record["table"]) for record in trainer.history] == [23, 7]


def test_an_exception_of_a_metric_in_a_worker_names_it(shared_local):
    def broken(output, target):
        raise KeyError("not there")

    x, y = classification()
    for metric in (broken, MulticlassAccuracy(num_classes=2)):
        with pytest.raises((KeyError, ValueError)) as caught:
            built(shared_local, metric={"mine": metric}).evaluate(x, y)
        assert "Raised by the metric 'mine'." in caught.value.__notes__
