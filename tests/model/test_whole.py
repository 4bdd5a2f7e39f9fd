"""Metrics of all samples are what scikit-learn computes from targets and predictions."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, FileDataset, Whole, write_files
from compss_train.callbacks import Callback, EarlyStopping
from compss_train.engines import SerialEngine
from tests.helpers.models import SGD, classification

metrics = pytest.importorskip("sklearn.metrics")

X, Y = classification(samples=90)
BINARY = (Y > 0).astype(np.int64)
FIT = {"num_epochs": 2, "batch_size": 20, "progress": False}
BINARY_LOSS = nn.BCEWithLogitsLoss()


def trainer_of(metric, loss="cross_entropy", outputs=3, engine="serial", workers=3, net=None):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    torch.manual_seed(0)
    trainer.build(nn.Linear(6, outputs) if net is None else net, SGD, loss, metric)
    return trainer


def softmax(logits):
    return torch.from_numpy(logits).softmax(1).numpy()


def sigmoid(logits):
    return torch.from_numpy(logits).sigmoid().numpy()


def test_probabilities_of_several_classes(engine):
    of_three = Whole(functools.partial(metrics.roc_auc_score, multi_class="ovr"))
    trainer = trainer_of({"auc": of_three, "accuracy": "accuracy"}, engine=engine)
    trainer.fit(X, Y, **FIT, validation_data=(X, Y))
    predicted = softmax(trainer.predict(X))
    expected = metrics.roc_auc_score(Y, predicted, multi_class="ovr")
    assert trainer.history[-1]["val_auc"] == pytest.approx(expected, abs=1e-4)
    assert "auc" not in trainer.history[-1]
    assert trainer.evaluate(X, Y, batch_size=7)["auc"] == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(
        trainer.predict(X, probabilities=True), predicted, rtol=1e-5, atol=1e-6
    )


CASES = {
    "two classes": ("cross_entropy", 2, BINARY, lambda out: softmax(out)[:, 1]),
    "one logit": (BINARY_LOSS, 1, BINARY[:, None], lambda out: sigmoid(out)[:, 0]),
}


@pytest.mark.parametrize(("loss", "outputs", "y", "score"), CASES.values(), ids=CASES)
def test_scores_of_class_1(loss, outputs, y, score):
    functions = {
        "auc": Whole(metrics.roc_auc_score),
        "average": Whole(metrics.average_precision_score),
        "f1": Whole(metrics.f1_score, of="classes"),
    }
    trainer = trainer_of(functions, loss, outputs)
    trainer.fit(X, y, **FIT)
    scores = score(trainer.predict(X))
    measured = trainer.evaluate(X, y)
    assert measured["auc"] == pytest.approx(metrics.roc_auc_score(BINARY, scores))
    assert measured["average"] == pytest.approx(metrics.average_precision_score(BINARY, scores))
    assert measured["f1"] == pytest.approx(metrics.f1_score(BINARY, scores > 0.5))


def test_other_losses_and_functions_get_outputs_and_targets():
    def largest(output, target):
        assert isinstance(output, np.ndarray)
        return {"largest": output.max(), "errors": np.abs(output - target).mean(axis=0)}

    y = X[:, :3] * 2
    trainer = trainer_of([Whole(metrics.r2_score), Whole(largest)], "mse")
    trainer.fit(X, y, **FIT, validation_data=(X, y))
    predicted = trainer.predict(X)
    record = trainer.history[-1]
    assert record["val_r2_score"] == pytest.approx(metrics.r2_score(y, predicted), abs=1e-5)
    assert record["val_largest"]["largest"] == pytest.approx(predicted.max(), abs=1e-5)
    assert len(record["val_largest"]["errors"]) == 3


def test_samples_are_in_order_and_those_that_are_ignored_are_left_out(tmp_path):
    y = Y.copy()
    y[::4] = -100
    kept = y != -100
    seen = []

    def keep(output, target):
        seen.append((output, target))
        return len(target)

    trainer = trainer_of({"number": Whole(keep, of="classes")})
    assert trainer.evaluate(X, y)["number"] == kept.sum()
    np.testing.assert_array_equal(seen[0][1], y[kept])
    np.testing.assert_array_equal(seen[0][0], trainer.predict(X).argmax(axis=1)[kept])
    files = FileDataset(write_files(tmp_path / "files", {"x": X, "y": y}, rows=16))
    assert trainer.evaluate(files)["number"] == kept.sum()
    np.testing.assert_array_equal(seen[1][1], y[kept])


def test_callbacks_may_watch_what_only_validation_measures(raises):
    trainer = trainer_of({"auc": Whole(metrics.roc_auc_score)}, outputs=2)
    stopping = EarlyStopping("val_auc", patience=1)
    trainer.fit(X, BINARY, **FIT, validation_data=(X, BINARY), callbacks=[stopping])
    with raises(ValueError, "did you mean val_auc"):
        stopping = EarlyStopping("auc", patience=1)
        trainer.fit(X, BINARY, **FIT, validation_data=(X, BINARY), callbacks=[stopping])


def test_mistakes(raises):
    with raises(TypeError, "Whole('auc')"):
        Whole("auc")
    with raises(ValueError, "of='scores'"):
        Whole(metrics.f1_score, of="scores")
    with raises(ValueError, "limit=0"):
        Whole(metrics.f1_score, limit=0)
    with raises(ValueError, "Whole(of='classes'): the loss mean_squared_error"):
        trainer_of(Whole(metrics.f1_score, of="classes"), "mse")
    with raises(ValueError, "predict(probabilities=True): the loss mean_squared_error"):
        trainer_of(None, "mse").predict(X, probabilities=True)
    small = trainer_of({"auc": Whole(metrics.roc_auc_score, limit=1000)}, outputs=2)
    with raises(ValueError, "more than 1,000 bytes"):
        small.evaluate(X, BINARY)
    wrong = trainer_of({"accuracy": Whole(metrics.accuracy_score)}, outputs=2)
    with pytest.raises(ValueError, match="mix of") as caught:
        wrong.evaluate(X, BINARY)
    assert any("of='classes'" in note for note in caught.value.__notes__)


def test_steps_return_their_output_for_them():
    def step(model, batch, context):
        x, y = batch
        output = model(x)
        loss = context.loss(output, y)
        return loss if context.training else {"loss": loss, "output": output}

    trainer = DistributedTrainer(2, engine=SerialEngine(), seed=0)
    trainer.build(
        nn.Linear(6, 2),
        SGD,
        "cross_entropy",
        {"auc": Whole(metrics.roc_auc_score)},
        training_step=step,
        validation_step=step,
    )
    trainer.fit(X, BINARY, **FIT, validation_data=(X, BINARY), callbacks=[Callback()])
    assert 0 <= trainer.history[-1]["val_auc"] <= 1


def test_logits_of_outputs_with_names_have_probabilities():
    class Named(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x), "x": x}

    trainer = trainer_of({"auc": Whole(metrics.roc_auc_score)}, net=Named(6, 2))
    trainer.fit(X, BINARY, **FIT)
    probabilities = trainer.predict(X, probabilities=True)
    np.testing.assert_allclose(probabilities, softmax(trainer.predict(X)["logits"]), rtol=1e-5)
    expected = metrics.roc_auc_score(BINARY, probabilities[:, 1])
    assert trainer.evaluate(X, BINARY)["auc"] == pytest.approx(expected)
