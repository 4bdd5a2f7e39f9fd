"""Invalid callbacks are errors before any task starts."""

import csv
import re

import numpy as np
import pytest

from compss_train.callbacks import (
    Callback,
    Checkpoint,
    Csv,
    EarlyStopping,
    JsonLines,
    Report,
    TensorBoard,
)
from compss_train.reports.history import History
from compss_train.training.callback_list import check_callbacks, check_watched
from tests.helpers.small_fits import X, Y, fit, trainer_of


class Keras(Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise AssertionError

    def on_train_begin(self, logs=None):
        raise AssertionError


class Nearly(Callback):
    def on_rounds_end(self, trainer, record):
        raise AssertionError


class Adding(Callback):
    """Somebody's own, who may add numbers to records."""

    on_gpu = False

    def new_best(self):
        """Is called by itself."""


HOOKS = (
    "on_fit_start",
    "on_round_start",
    "on_merge",
    "on_round_end",
    "on_fit_end",
    "on_exception",
)


@pytest.mark.parametrize(
    ("callback", "names"), [(Keras(), "on_epoch_end, on_train_begin"), (Nearly(), "on_rounds_end")]
)
def test_hooks_of_other_libraries_are_warned_of(callback, names):
    message = (
        f"fits do not call {names} of {type(callback).__name__}; the hooks of a callback are "
        f"{', '.join(HOOKS)}"
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        trainer_of().fit(
            X,
            Y,
            num_epochs=1,
            batch_size=30,
            callbacks=[callback, callback.__class__()],
            progress=False,
        )
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "kinds", [(Checkpoint, Checkpoint), (JsonLines, Csv), (Csv, Report), (TensorBoard, TensorBoard)]
)
def test_two_callbacks_with_the_same_path_are_an_error(tmp_path, monkeypatch, kinds):
    monkeypatch.chdir(tmp_path)
    first, second = (
        kind(place) for kind, place in zip(kinds, (tmp_path / "it.html", "it.html"), strict=True)
    )
    names = " and ".join(kind.__name__ for kind in kinds)
    with pytest.raises(
        ValueError, match=rf"{names} would both write to it\.html; give each its own"
    ):
        check_callbacks([first, EarlyStopping(), second])
    check_callbacks([first, EarlyStopping()])
    check_callbacks([first, first.__class__("other.html")])


def test_only_checkpoints_are_written_to_object_stores():
    with pytest.raises(ValueError, match=r"Csv has s3:/bucket/it\.csv, but only Checkpoint writes"):
        check_callbacks([Csv("s3://bucket/it.csv")])


MEASURES = ("loss", "accuracy")
ALL = "loss, accuracy, val_loss, val_accuracy"


@pytest.mark.parametrize(
    ("monitor", "options", "message"),
    [
        *((name, {"validated": True}, None) for name in (*ALL.split(", "), "samples_per_second")),
        ("val_averaged_accuracy", {"validated": True, "averaged": True}, None),
        *((name, {"online": True}, None) for name in ("received", "unseen", "batches_per_second")),
        *((name, {}, "loss, accuracy") for name in ("received", "unseen", "batches_per_second")),
        ("val_loss", {}, "loss, accuracy; give fit validation_data="),
        ("accurcy", {}, "loss, accuracy; did you mean accuracy?"),
        ("val_acc", {"validated": True}, f"{ALL}; did you mean val_accuracy?"),
        ("val_averaged_accuracy", {"validated": True}, f"{ALL}; did you mean val_accuracy?"),
        ("zzz", {"validated": True}, ALL),
    ],
)
@pytest.mark.parametrize(
    "make", [EarlyStopping, lambda *a, **k: Checkpoint("folder", 1, 2, *a, **k)]
)
def test_records_must_have_what_is_monitored(make, monitor, options, message):
    callback = make(monitor, mode="max")
    options = {"validated": False, **options}
    if message is None:
        check_watched([callback, Callback()], MEASURES, **options)
        return
    text = (
        f"{type(callback).__name__} monitors '{monitor}', but records have no '{monitor}' "
        f"but {message}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        check_watched([callback], MEASURES, **options)


def test_fields_that_a_user_callback_may_add_are_accepted():
    stopping = EarlyStopping("own", mode="max")
    saving = Checkpoint("folder", best="own", mode="max")
    for callbacks in ([Adding(), stopping], [saving, Adding()]):
        check_watched(callbacks, MEASURES, validated=True)
    with pytest.raises(ValueError, match="EarlyStopping monitors 'own', but records have no 'own'"):
        check_watched([stopping], MEASURES, validated=True)
    with pytest.raises(ValueError, match="give fit validation_data="):
        check_watched([Adding(), EarlyStopping("val_loss")], MEASURES, validated=False)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.int64(3), 3])
def test_a_field_of_a_callback_is_monitored_written_and_saved(tmp_path, number):
    class Own(Callback):
        def on_round_end(self, trainer, record):
            record["own"] = number * [3, 2, 1, 4][record["round"]]

    trainer = trainer_of()
    restored = trainer_of()
    file = tmp_path / "history.csv"
    lines = tmp_path / "history.jsonl"
    stopping = EarlyStopping("own", mode="min", patience=1)
    saving = Checkpoint(tmp_path, best="own", mode="min")
    fit(trainer, Own(), Csv(file), JsonLines(lines), stopping, saving, num_epochs=4)
    own = [number * factor for factor in (3, 2, 1, 4)]
    assert [record["own"] for record in trainer.history] == own
    assert stopping.best_round == saving.best_round == 2
    assert [float(row["own"]) for row in csv.DictReader(file.read_text().splitlines())] == own
    assert [record["own"] for record in History.load(lines)] == own
    restored.restore(tmp_path, best=True)
    assert [record["own"] for record in restored.history] == own[:3]
