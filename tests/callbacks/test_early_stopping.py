"""Early stopping: when fits stop, and with which parameters."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import Merge
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.callbacks import CallAt, InterruptAt
from tests.helpers.models import assert_same_bits
from tests.helpers.small_fits import X, Y, assert_alike, fit, trainer_of

VALIDATION = {"validation_data": (X[:20], Y[:20])}


class ScriptedTrainer:
    """A trainer whose rounds measure given values."""

    def __init__(self, resumed_from=None):
        self.reason = None
        self.parameters = None
        self.resumed_from = resumed_from

    def stop(self, reason):
        self.reason = reason

    def get_parameters(self, *, averaged=False):
        return {"round": self.now, **({"averaged": True} if averaged else {})}

    def set_parameters(self, parameters):
        self.parameters = parameters

    def run(self, callback, values, start=0, name="loss"):
        """Return after how many rounds it stops."""
        self.now = start
        callback.on_fit_start(self, None)
        while self.now < len(values) and self.reason is None:
            callback.on_round_end(
                self, {"round": self.now, "epoch": self.now, name: values[self.now]}
            )
            self.now += 1
        callback.on_fit_end(self)
        return self.now


@pytest.mark.parametrize(
    ("values", "options", "rounds", "best"),
    [
        ([3, 2, 2, 2, 1], {"patience": 2}, 4, 1),
        ([3, 2, 2.5, 1, 2, 2, 0], {"patience": 2}, 6, 3),
        ([3, 2, 1], {"patience": 1}, 3, 2),
        ([3, 3, 2], {"patience": 1}, 2, 0),
        # 2.8 is better than 3 by more than that.
        ([3, 2.9, 2.8, 2.7], {"patience": 2, "min_delta": 0.15}, 4, 2),
        ([3, 2.9, 2.8, 2.7], {"patience": 2, "min_delta": 0.5}, 3, 0),
        ([1, 2, 3, 3, 3], {"patience": 2, "mode": "max"}, 5, 2),
        ([1, 2, 3], {"patience": 2, "mode": "min"}, 3, 0),
        ([math.nan, math.nan, 1], {"patience": 2}, 2, None),
        ([math.nan, 2, math.nan, math.nan, 1], {"patience": 2}, 4, 1),
        ([math.inf, 2, -math.inf], {"patience": 9}, 3, 2),
    ],
)
def test_stops_after_patience(values, options, rounds, best):
    callback = EarlyStopping("loss", **options)
    trainer = ScriptedTrainer()
    assert trainer.run(callback, values) == rounds
    assert callback.best_round == best
    assert callback.best == (None if best is None else values[best])
    assert trainer.parameters == (None if best is None else {"round": best})
    waited = rounds - 1 - (-1 if best is None else best)
    assert trainer.reason == (
        f"loss has not improved for {waited} rounds" if waited >= callback.patience else None
    )


@given(
    st.lists(st.integers(0, 9) | st.just(math.nan), min_size=2, max_size=12),
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
    st.sampled_from([0, 1.5]),
    st.data(),
)
def test_a_resumed_fit_stops_after_the_same_round(values, patience, mode, min_delta, data):
    def new():
        return EarlyStopping("loss", patience=patience, mode=mode, min_delta=min_delta)

    whole = new()
    first = new()
    second = new()
    rounds = ScriptedTrainer().run(whole, values)
    k = data.draw(st.integers(1, rounds), "interrupted after")
    ScriptedTrainer().run(first, values[:k])
    second.load_state_dict(first.state_dict())
    again = ScriptedTrainer(resumed_from="a checkpoint")
    assert again.run(second, values, start=k) == rounds
    assert (second.best, second.best_round) == (whole.best, whole.best_round)
    assert again.parameters == (None if whole.best_round is None else {"round": whole.best_round})


def test_every_fit_but_a_resumed_one_resets_it():
    callback = EarlyStopping("loss", patience=2)
    ScriptedTrainer().run(callback, [1, 2, 3])
    assert ScriptedTrainer().run(callback, [9, 8, 9, 9]) == 4
    assert callback.best == 8
    callback.load_state_dict(callback.state_dict())  # by a fit that was refused before it began
    assert ScriptedTrainer().run(callback, [7, 6, 7, 7]) == 4
    assert callback.best == 6


def test_the_average_is_restored_where_it_is_monitored():
    trainer = trainer_of()
    averages = []
    keeping = CallAt(
        "round_end", lambda each: averages.append(each.get_parameters(averaged=True)), number=2
    )
    # The last of three rounds is the best.
    stopping = EarlyStopping("val_averaged_loss", patience=9)
    fit(trainer, stopping, keeping, merge=Merge(averaging=0.5), **VALIDATION)
    assert stopping.best_round == 2
    assert_same_bits(trainer.get_parameters(), averages[0])
    assert_same_bits(trainer.get_parameters(), trainer.get_parameters(averaged=True))


def test_without_restore_best_the_last_parameters_stay():
    callback = EarlyStopping("loss", patience=1, restore_best=False)
    trainer = ScriptedTrainer()
    trainer.run(callback, [1, 2, 3])
    assert trainer.parameters is None
    assert callback.best_round == 0


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("mae", "min"),
        ("val_mse", "min"),
        ("mean_absolute_error", "min"),
        ("accuracy", "max"),
        ("val_categorical_accuracy", "max"),
        ("val_f1", "max"),
    ],
)
def test_modes_are_inferred_from_names(monitor, mode):
    assert EarlyStopping(monitor).mode == Checkpoint("x", best=monitor).mode == mode
    assert EarlyStopping(monitor, mode="max").mode == "max"


def monitoring(value):
    ScriptedTrainer().run(EarlyStopping("recall", mode="max"), [value], name="recall")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: EarlyStopping("speed"), "'speed': unknown whether low or high values are better"),
        (
            lambda: Checkpoint("x", best="speed"),
            ("'speed': unknown whether low or high values are better"),
        ),
        (lambda: EarlyStopping("val_los"), "'val_los': unknown whether"),
        (lambda: EarlyStopping("loss", mode="most"), "mode='most'"),
        *(
            (lambda n=n: EarlyStopping("loss", patience=n), f"patience={n}: give an integer")
            for n in (0, -1, 1.5, True)
        ),
        *(
            (lambda n=n: EarlyStopping("loss", min_delta=n), f"min_delta={n!r}: give a number")
            for n in ("a", -1, math.nan, True)
        ),
        (lambda: monitoring([0.5]), "'recall' is [0.5]"),
        (
            lambda: EarlyStopping("loss").on_round_end(SimpleNamespace(), {"round": 0}),
            ("records have no 'loss'"),
        ),
        (lambda: Checkpoint("x", best=True), "True is not the name of a field of records"),
    ],
)
def test_invalid_arguments_are_errors(make, name, raises):
    with raises((ValueError, TypeError), name):
        make()


@pytest.mark.parametrize("engine", ["serial", "local"])
def test_a_stopped_fit_restores_the_parameters_of_the_best_round(request, engine):
    chosen = request.getfixturevalue("shared_local") if engine == "local" else "serial"
    trainer = trainer_of(chosen)
    best = trainer_of()
    callback = EarlyStopping("val_loss", mode="max", patience=2)  # the first round is the worst
    returned = fit(trainer, callback, num_epochs=9, **VALIDATION)
    assert (callback.best_round, len(trainer.history)) == (0, 3)
    assert trainer.stopped == "val_loss has not improved for 2 rounds"
    assert_same_bits(returned, fit(best, num_epochs=1))
    assert_same_bits(trainer.get_parameters(), returned)
    assert (
        trainer.evaluate(X[:20], Y[:20])["loss"] == trainer.history[0]["val_loss"] == callback.best
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_an_interrupted_and_resumed_fit_ends_alike(tmp_path, k):
    def stopping():
        return EarlyStopping("loss", mode="max", patience=3)

    whole = trainer_of()
    first = trainer_of()
    second = trainer_of()
    returned = fit(whole, stopping(), num_epochs=9)
    assert len(whole.history) == 4
    with pytest.raises(KeyboardInterrupt):
        fit(first, stopping(), Checkpoint(tmp_path), InterruptAt(k), num_epochs=9)
    for _ in range(2):  # the second time it has ended
        assert_same_bits(
            fit(second, stopping(), Checkpoint(tmp_path), resume=True, num_epochs=9), returned
        )
        assert_alike(second, whole)
    assert max(list_checkpoints(tmp_path)) == 3


def test_the_last_checkpoint_has_the_parameters_of_the_last_round(tmp_path):
    trainer = trainer_of()
    last = trainer_of()
    fit(trainer, Checkpoint(tmp_path), EarlyStopping("loss", mode="max", patience=2), num_epochs=9)
    last.restore(tmp_path)
    assert_same_bits(last.get_parameters(), fit(trainer_of(), num_epochs=3))


def test_patience_in_epochs_counts_epochs():
    for merge in (Merge(unit="blocks"), Merge(every=2)):
        trainer = trainer_of(workers=2, optimizer={"optimizer": "sgd", "lr": 0.0})
        stopping = EarlyStopping("loss", patience_epochs=2, min_delta=10.0)
        fit(trainer, stopping, blocks=4, num_epochs=12, merge=merge)
        assert trainer.stopped == "loss has not improved for 2 epochs"
        assert trainer.history[-1]["epoch"] - trainer.history[0]["epoch"] == 2
    with pytest.raises(ValueError, match="patience=3 and patience_epochs=2: give one"):
        EarlyStopping(patience=3, patience_epochs=2)
