"""The contract of all callbacks of the package; a new callback needs only an entry in FACTORIES."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from compss_train import Merge, callbacks
from compss_train.callbacks import Callback, Checkpoint, TensorBoard
from compss_train.training.checkpoints import list_checkpoints, read_checkpoint, write_checkpoint
from tests.helpers.callbacks import StopAfter
from tests.helpers.small_fits import assert_alike, fit, numbers_of, trainer_of
from tests.training.checkpoints.trees import assert_same

FACTORIES = {
    Checkpoint: lambda folder: Checkpoint(folder / "own", every=2, best="loss"),
    callbacks.Csv: lambda folder: callbacks.Csv(folder / "history.csv"),
    callbacks.EarlyStopping: lambda folder: callbacks.EarlyStopping(
        "loss", mode="max", patience=99, restore_best=False
    ),
    callbacks.JsonLines: lambda folder: callbacks.JsonLines(folder / "history.jsonl"),
    callbacks.ProgressBar: lambda folder: callbacks.ProgressBar(),
    callbacks.Report: lambda folder: callbacks.Report(folder / "report.html"),
    callbacks.RoundLines: lambda folder: callbacks.RoundLines(),
    TensorBoard: lambda folder: TensorBoard(folder / "board"),
}

TRACKERS = {callbacks.MLflow, callbacks.WandB, callbacks.Profile, callbacks.RayTune}
"""Those that take seconds for each run, or need a trial: they have tests of their own."""


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_all_callbacks_are_tested():
    # Have tests of their own.
    in_workers = {callbacks.WorkerCallback, callbacks.WorkerContext, callbacks.Unfreeze}
    abstract = {Callback, callbacks.TrainerProtocol}
    public = {getattr(callbacks, name) for name in callbacks.__all__} - abstract - in_workers
    ours = {
        each
        for each in subclasses(Callback)
        if each.__module__.startswith("compss_train.callbacks.")
    }
    assert (
        set(FACTORIES) | TRACKERS
        == public
        == {each for each in ours if not each.__name__.startswith("_")}
    )


@pytest.fixture(params=FACTORIES, ids=lambda kind: kind.__name__)
def make(request, tmp_path):
    if request.param is TensorBoard:
        pytest.importorskip("tensorboard")
    (tmp_path / "made").mkdir()
    return lambda: FACTORIES[request.param](tmp_path / "made")


class Failing(Callback):
    """Raises in one hook, in the second round; collects the exceptions of ``on_exception``."""

    def __init__(self, hook, error=None):
        self.hook = hook
        self.error = error or ZeroDivisionError("mine")
        self.exceptions = []

    def _raise(self, hook):
        if hook == self.hook:
            raise self.error

    def on_fit_start(self, trainer, total_samples):
        self._raise("on_fit_start")

    def on_round_start(self, trainer, number):
        if number % 3 == 1:
            self._raise("on_round_start")

    def on_round_end(self, trainer, record):
        if record["round"] % 3 == 1:
            self._raise("on_round_end")

    def on_fit_end(self, trainer):
        self._raise("on_fit_end")

    def on_exception(self, trainer, error):
        self.exceptions.append(error)
        self._raise("on_exception")

    def state_dict(self):
        self._raise("state_dict")
        return {"held": 1}

    def load_state_dict(self, state):
        self._raise("load_state_dict")

    def needs_state(self, number):
        self._raise("needs_state")
        return False


class Letters(Callback):
    """Records the calls of hooks: Start, round and end of round, End, eXception."""

    def __init__(self, keeps_state=False, log=None):
        self.keeps_state = keeps_state
        self.log = [] if log is None else log

    def _write(self, letter):
        self.log.append(letter.swapcase() if self.keeps_state else letter)

    def on_fit_start(self, trainer, total_samples):
        self._write("S")

    def on_round_start(self, trainer, number):
        assert number == len(trainer.history)
        self._write("r")

    def on_round_end(self, trainer, record):
        assert record is trainer.history[-1]
        self._write("e")

    def on_fit_end(self, trainer):
        self._write("E")

    def on_exception(self, trainer, error):
        self._write("X")

    @property
    def calls(self):
        return "".join(self.log)


@pytest.fixture(scope="module")
def alone():
    """A trainer after two fits."""
    trainer = trainer_of()
    for _ in range(2):
        fit(trainer)
    return trainer


def test_it_changes_no_result_and_can_be_reused(make, alone):
    watched = trainer_of()
    callback = make()
    for _ in range(2):
        fit(watched, callback)
    assert_alike(watched, alone)


@pytest.mark.filterwarnings("ignore:.*nothing is left to train")
def test_it_works_without_remaining_rounds(make, tmp_path):
    whole = trainer_of()
    again = trainer_of()
    fit(whole, make(), Checkpoint(tmp_path), num_epochs=1)
    for _ in range(2):
        fit(again, make(), Checkpoint(tmp_path), resume=tmp_path, num_epochs=1)
    assert_alike(again, whole)


class MoveTo(Callback):
    """Changes the folder of the program after the first round, as a simulation may."""

    def __init__(self, folder):
        self.folder = folder

    def on_round_end(self, trainer, record):
        os.chdir(self.folder)


@pytest.mark.parametrize("kind", FACTORIES, ids=lambda kind: kind.__name__)
def test_it_writes_to_the_folder_of_the_start_of_the_fit(kind, tmp_path, monkeypatch):
    if kind is TensorBoard:
        pytest.importorskip("tensorboard")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    fit(trainer_of(), MoveTo(other), FACTORIES[kind](Path("made")))
    assert os.listdir(other) == []
    if kind is Checkpoint:
        assert max(list_checkpoints(tmp_path / "made" / "own")) == 2


@pytest.mark.parametrize("hook", ["on_fit_start", "on_round_end"])
def test_it_works_after_an_exception(make, hook):
    trainer = trainer_of()
    callback = make()
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(trainer, callback, Failing(hook), num_epochs=2)
    assert caught.value.__notes__ == [f"Raised in the callback Failing, by its {hook}."]
    done = len(trainer.history)
    fit(trainer, callback, num_epochs=1)
    assert len(trainer.history) == done + 1


def test_its_state_is_restored_from_a_checkpoint(make, tmp_path):
    whole = trainer_of()
    first = trainer_of()
    second = trainer_of()
    at_the_end = make()
    kept = Checkpoint(tmp_path / "checkpoints", keep=9)
    fit(whole, at_the_end, num_epochs=4)
    whole_state = numbers_of(at_the_end.state_dict())
    shutil.rmtree(tmp_path / "made")
    (tmp_path / "made").mkdir()
    ours = make()
    with pytest.raises(ZeroDivisionError):
        fit(first, ours, kept, Failing("on_round_start"), num_epochs=4)
    write_checkpoint(tmp_path / "state", {"state": ours.state_dict()})
    assert_same(ours.state_dict(), read_checkpoint(tmp_path / "state")["state"])
    again = make()
    fit(second, again, kept, resume=True, num_epochs=4)
    assert_alike(second, whole)
    assert_same(numbers_of(again.state_dict()), whole_state)


@pytest.mark.parametrize(
    ("options", "callbacks", "calls"),
    [
        ({}, [], "SrerereE"),
        ({"merge": Merge(unit="blocks"), "num_epochs": 1}, [], "SrerereE"),
        ({"merge": Merge(every=0)}, [], "SreE"),
        ({}, [StopAfter(1)], "SrereE"),
        ({}, [Failing("on_fit_start")], "SX"),
        ({}, [Failing("on_round_start")], "SrerX"),
        ({}, [Failing("on_round_end")], "SrereX"),
        ({}, [Failing("on_fit_end")], "SrerereEX"),
        ({}, [Failing("on_round_end", KeyboardInterrupt())], "SrereX"),
        ({}, [Failing("on_round_end", SystemExit(3))], "SrereX"),
    ],
)
def test_hooks_are_called_in_order(options, callbacks, calls):
    """The callback that raises is called after the recording one."""
    letters = Letters()
    raises = callbacks and isinstance(callbacks[0], Failing)
    with pytest.raises(type(callbacks[0].error)) if raises else nullcontext() as caught:
        fit(trainer_of(), letters, *callbacks, **options)
    assert letters.calls == calls
    if raises:
        assert callbacks[0].exceptions == [caught.value]


def test_all_callbacks_get_an_exception_of_the_training():
    def explode(x):
        raise FloatingPointError("in a task")

    letters = [Letters(), Letters(keeps_state=True)]
    with pytest.raises(FloatingPointError, match="in a task") as caught:
        fit(trainer_of(transform=explode), *letters)
    assert [each.calls for each in letters] == ["SX", "sx"]
    assert not any("callback" in note for note in caught.value.__notes__)


def test_callbacks_that_keep_state_start_first_and_end_last():
    log = []
    fit(trainer_of(), Letters(True, log), Letters(False, log), num_epochs=2)
    assert "".join(log) == "sS" + "rReE" + "rReE" + "eE"


def test_an_exception_in_on_exception_is_a_note():
    bad = Failing("on_exception", OSError("no more"))
    good = Failing("on_round_end")
    last = Failing("")
    with pytest.raises(ZeroDivisionError) as caught:
        fit(trainer_of(), bad, good, last)
    assert caught.value.__notes__ == [
        "Raised in the callback Failing, by its on_round_end.",
        "And Failing.on_exception raised OSError('no more').",
    ]
    assert len(good.exceptions) == len(last.exceptions) == 1


def test_states_are_restored_to_their_callbacks(tmp_path):
    class Counter(Callback):
        def __init__(self, step):
            self.step = step
            self.count = 0

        def on_round_end(self, trainer, record):
            self.count += self.step

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def fit_with(*counters, **options):
        fit(trainer_of(), Checkpoint(tmp_path), *counters, **options)
        return [counter.count for counter in counters]

    assert fit_with(Counter(1), Counter(10), num_epochs=2) == [2, 20]
    assert fit_with(Counter(1), Counter(10), Counter(100), num_epochs=3, resume=True) == [
        3,
        30,
        100,
    ]
    assert fit_with(Counter(1), num_epochs=3, resume=True) == [3]
