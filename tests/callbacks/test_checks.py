"""What is wrong with callbacks is told before any task starts."""

import csv
import re
import warnings

import pytest

from compss_train.callbacks import Callback, Checkpoint, Csv, EarlyStopping, JsonLines, Report
from compss_train.callbacks.checks import HOOKS, check_callbacks, check_watched
from tests.resuming import fit, trainer_of


class Keras(Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise AssertionError

    def on_train_begin(self, logs=None):
        raise AssertionError


class Adding(Callback):
    """Somebody's own, who may add numbers to records."""


def test_hooks_of_other_libraries_are_told_with_those_that_there_are():
    told = (
        "nothing calls on_epoch_end, on_train_begin of Keras; the hooks of a callback are on_fit_start, "
        "on_round_start, on_round_end, on_fit_end, on_exception"
    )
    with pytest.warns(UserWarning, match=re.escape(told)):
        check_callbacks([Keras()])


def test_hooks_are_what_the_base_class_has():
    assert set(HOOKS) == {"on_fit_start", "on_round_start", "on_round_end", "on_fit_end", "on_exception"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_callbacks([Adding(), EarlyStopping()])


@pytest.mark.parametrize("kinds", [(Checkpoint, Checkpoint), (JsonLines, Csv), (Csv, Report)])
def test_two_that_would_write_to_the_same_place_are_refused(tmp_path, monkeypatch, kinds):
    monkeypatch.chdir(tmp_path)
    first, second = (kind(place) for kind, place in zip(kinds, (tmp_path / "it.html", "it.html"), strict=True))
    names = " and ".join(kind.__name__ for kind in kinds)
    with pytest.raises(ValueError, match=rf"{names} would both write to it\.html; give each its own"):
        check_callbacks([first, EarlyStopping(), second])
    check_callbacks([first, EarlyStopping()])
    check_callbacks([first, first.__class__("other.html")])


MEASURES = ("loss", "accuracy")


@pytest.mark.parametrize(
    ("monitor", "validated", "told"),
    [
        ("val_loss", False, "but loss, accuracy; give fit validation_data="),
        ("accurcy", False, "but loss, accuracy; did you mean accuracy?"),
        ("val_acc", True, "but loss, accuracy, val_loss, val_accuracy; did you mean val_accuracy?"),
        ("zzz", True, "but loss, accuracy, val_loss, val_accuracy"),
    ],
)
@pytest.mark.parametrize("make", [EarlyStopping, lambda *a, **k: Checkpoint("folder", 1, 2, *a, **k)])
def test_numbers_that_records_will_not_have_are_refused(make, monitor, validated, told):
    callback = make(monitor, mode="max")
    with pytest.raises(ValueError, match=re.escape(f"records have no '{monitor}' {told}") + "$") as caught:
        check_watched([callback], MEASURES, validated=validated)
    assert str(caught.value).startswith(f"{type(callback).__name__} goes by '{monitor}'")


@pytest.mark.parametrize("monitor", ["loss", "accuracy", "val_loss", "val_accuracy", "samples_per_second"])
def test_numbers_that_they_will_have_are_not(monitor):
    check_watched([EarlyStopping(monitor, mode="max"), Callback()], MEASURES, validated=True)


def test_what_somebodys_own_callback_may_add_is_waited_for():
    check_watched([Adding(), EarlyStopping("own", mode="max")], MEASURES, validated=True)
    with pytest.raises(ValueError, match="give fit validation_data="):
        check_watched([Adding(), EarlyStopping("val_loss")], MEASURES, validated=False)


def test_a_number_that_a_callback_adds_is_watched_written_and_saved(tmp_path):
    class Own(Callback):
        def on_round_end(self, trainer, record):
            record["own"] = [3.0, 2.0, 1.0, 4.0][record["round"]]

    trainer, restored, file = trainer_of(), trainer_of(), tmp_path / "history.csv"
    stopping, saving = EarlyStopping("own", mode="min", patience=1), Checkpoint(tmp_path, best="own", mode="min")
    fit(trainer, Own(), Csv(file), stopping, saving, num_epochs=4)
    assert [record["own"] for record in trainer.history] == [3.0, 2.0, 1.0, 4.0]
    assert stopping.best_round == saving.best_round == 2
    assert [row["own"] for row in csv.DictReader(file.read_text().splitlines())] == ["3.0", "2.0", "1.0", "4.0"]
    restored.restore(tmp_path, best=True)
    assert [record["own"] for record in restored.history] == [3.0, 2.0, 1.0]
