"""fit_online that goes on from a save: what is trained, what runs again, and what is refused."""

import copy
import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import safe_open
from torch import nn

from compss_train import (
    BreedInputs,
    BufferSpec,
    Gradients,
    OGASInputs,
    SampleSender,
    Schedule,
    Simulations,
    SpacedInputs,
)
from compss_train._utils import validation
from compss_train.callbacks import Callback, Checkpoint
from compss_train.data import locations
from compss_train.exceptions import TrainingEndedError
from compss_train.model.value_encoding import decode_value
from compss_train.online.external_senders import ExternalSenders
from compss_train.online.inputs import BEGUN, FAILED, Inputs, hash_of
from compss_train.online.recorder import Recorder
from compss_train.online.task_runs import TaskRuns
from compss_train.online.workers import Workers
from compss_train.training.checkpoints import (
    list_checkpoints,
    read_checkpoint,
    read_latest_checkpoint,
)
from tests.buffers.kinds import Thread
from tests.helpers.cases import each_value
from tests.helpers.models import assert_same_bits
from tests.helpers.waiting import LIMIT, pause, wait_until
from tests.online.fits import FIFO, build_trainer, online, split_range
from tests.online.simulations import (
    COUNTING_SGD,
    CallAll,
    CountingNet,
    Fault,
    OneHotSimulation,
    TouchFile,
    free_port,
    increment,
    kill_process,
    one_hot,
    raise_error,
    read_count,
    sample_counts,
    sum_loss,
    wait_for_file,
)

pytestmark = pytest.mark.usefixtures("check_threads")

SAMPLES = 120
EACH = 10
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


def rest(number):
    pause(0.01)


@dataclass(frozen=True)
class Held:
    """Takes its time for each sample, and does not come to those from a number on before the life
    has ended.
    """

    first: int
    ended: Path

    def __call__(self, number):
        rest(number)
        if number >= self.first:
            wait_until(self.ended.exists, 600)


@contextmanager
def held(folder, stop):
    """What simulations do before each sample, so that the fit goes on until it is stopped, if it
    is.
    """
    ended = folder / f"ended-{uuid4()}"
    try:
        yield Held(stop.received + 5, ended) if isinstance(stop, StopAt) else rest
    finally:
        ended.touch()


@dataclass(frozen=True)
class Noted:
    """Yields one-hot samples, and counts in a folder how often each simulation has begun and
    ended.
    """

    folder: Path
    before: Callable[[int], None] = rest

    def __call__(self, numbers):
        increment(self.folder / f"begun-{numbers[0]}")
        yield from OneHotSimulation(SAMPLES, self.before)(numbers)
        increment(self.folder / f"ended-{numbers[0]}")


class StopAt(Callback):
    """Ends a fit after a save when workers have received so many samples, by an exception, ``stop``
    or SIGTERM.
    """

    def __init__(self, received, how="raise"):
        self.received = received
        self.how = how
        self.saved = False

    def on_round_end(self, trainer, record):
        if self.saved and record["received"] >= self.received and trainer.stopping is None:
            if self.how == "raise":
                raise KeyboardInterrupt
            if self.how == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                trainer.stop("enough")
        self.saved = self.saved or trainer.state_id is not None


def run_life(
    engine,
    folder,
    *,
    workers=1,
    stop=None,
    net=None,
    inputs=None,
    simulate=None,
    every=1,
    **options,
):
    """Start the program; return its trainer, and whether it has reached its end."""
    trainer = build_trainer(
        engine, workers, net or CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0
    )
    callbacks = [Checkpoint(folder / "saves"), *([] if stop is None else [stop])]
    given = {
        "resume": True,
        "checkpoint_every": 0.001,
        "callbacks": callbacks,
        "progress": False,
        "every": every,
    }
    with held(folder, stop) as before, suppress(KeyboardInterrupt, SystemExit):
        own = simulate or Noted(folder, before), inputs or split_range(SAMPLES, EACH)
        online(trainer, *((None, ()) if simulate is False else own), **(given | options))
        return trainer, trainer.stopped is None
    return trainer, False


BUFFERS = {
    "FIFO": FIFO,
    "FIRO": BufferSpec("FIRO", 16, threshold=6),
    "Reservoir": BufferSpec("Reservoir", 16, threshold=6),
    "BatchReservoir": BufferSpec("BatchReservoir", 16, threshold=6),
}


@pytest.mark.parametrize(("workers", "kind"), each_value([1, 2], [*BUFFERS]))
def test_each_sample_is_trained_once_over_the_lives_and_complete_simulations_do_not_run_again(
    local, tmp_path, kind, workers
):
    """Reservoirs train it at least once."""
    options = {"workers": workers, "buffer": BUFFERS[kind], "count": 2}
    for stop in (StopAt(30), StopAt(55, "stop"), StopAt(80, "SIGTERM")):
        _, ended = run_life(local, tmp_path, stop=stop, **options)
        assert not ended
        begun = begun_of_complete_ones(tmp_path)
    trainer, ended = run_life(local, tmp_path, **options)
    assert ended
    counts = sample_counts(trainer.get_parameters(), workers)
    assert min(counts) == 1 if kind in ("FIFO", "FIRO") else min(counts) >= 1
    assert max(counts) == 1 or kind not in ("FIFO", "FIRO")
    assert begun
    assert begun.items() <= begun_of_complete_ones(tmp_path).items()
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 12, "failed": 0}
    assert [record["round"] for record in trainer.history] == list(range(len(trainer.history)))
    if kind in ("FIFO", "FIRO"):
        assert sum(record["samples"] for record in trainer.history) == SAMPLES
        assert trainer.history[-1]["repetitions"] == [0, SAMPLES]


def complete_ones(folder):
    """Return the simulations that the last save holds as complete."""
    samples = read_latest_checkpoint(folder)[1]["study"]["simulations"]["samples"]
    return np.flatnonzero(samples >= 0).tolist()


def begun_of_complete_ones(folder):
    """Return how often each simulation has begun that the last save holds as complete."""
    return {
        number: read_count(folder / f"begun-{number * EACH}")
        for number in complete_ones(folder / "saves")
    }


def dropping():
    """A network whose bits show random draws, the optimizer's state and the order of samples."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SAMPLES, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 1))


NETS = {
    "adam": ({"optimizer": "adam", "lr": 0.01}, {}),
    "outer": (
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
        {"outer_optimizer": NESTEROV, "every": 3},
    ),
    "accumulate": ({"optimizer": "adam", "lr": 0.01}, {"every": 4}),
    "schedule": ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, {"every": 4}),
    "average": (
        {"optimizer": "adam", "lr": 0.01},
        {"every": 4, "averaging": 0.9, "averaging_unit": "steps"},
    ),
}


def decaying(batch):
    return 0.97**batch


@pytest.mark.parametrize("case", NETS)
def test_one_worker_and_one_simulation_at_a_time_give_the_bits_of_an_undisturbed_study(
    local, tmp_path, case
):
    """Wherever saves happen: also while the worker waits for samples, between two merges or two
    steps.
    """
    optimizer, options = NETS[case]
    gradients = Gradients(accumulate=3) if case in ("accumulate", "average") else None
    schedule = Schedule(decaying, unit="batches") if case == "schedule" else None

    def life(folder, stop=None, **more):
        trainer = build_trainer(
            local,
            1,
            dropping(),
            optimizer,
            "mse",
            seed=3,
            gradients=gradients,
            schedule=schedule,
        )
        given = {
            "callbacks": [Checkpoint(folder / "saves"), *([] if stop is None else [stop])],
            "progress": False,
        }
        with held(folder, stop) as before, suppress(KeyboardInterrupt):
            online(
                trainer,
                Noted(folder, before),
                split_range(SAMPLES, EACH),
                **(given | options | more),
            )
        return trainer

    (tmp_path / "undisturbed").mkdir()
    undisturbed = life(tmp_path / "undisturbed", checkpoint_every=None)
    for stop in (StopAt(25), StopAt(45, "stop"), StopAt(75), None):
        trainer = life(tmp_path, stop, checkpoint_every=0.001, resume=True)
        assert trainer.resumed_from is not None or stop.received == 25
    assert_same_bits(trainer.get_parameters(), undisturbed.get_parameters())
    if case == "average":
        with pytest.warns(UserWarning, match="is the end of its study"):
            complete = life(tmp_path, resume=True)
        for study in (trainer, complete):
            assert_same_bits(
                study.get_parameters(averaged=True), undisturbed.get_parameters(averaged=True)
            )


def test_a_complete_study_is_not_trained_again_and_nothing_in_its_folder_is_a_pickle(
    local, tmp_path
):
    trainer, _ = run_life(local, tmp_path, checkpoint_every=None)
    begun = (tmp_path / "begun-0").stat().st_size
    with pytest.warns(UserWarning, match="is the end of its study: nothing is left to train"):
        again, _ = run_life(local, tmp_path, resume=tmp_path / "saves")
    assert_same_bits(again.get_parameters(), trainer.get_parameters())
    assert len(again.history) == len(trainer.history)
    assert (tmp_path / "begun-0").stat().st_size == begun
    run_life(
        local,
        tmp_path,
        stop=StopAt(40),
        resume=False,
        callbacks=[Checkpoint(tmp_path / "other"), StopAt(40)],
    )
    files = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jsonl"}
    assert any(path.name == "buffer-0.safetensors" for path in files)
    for path in files:
        assert not path.read_bytes().startswith(b"\x80")
        if path.suffix == ".safetensors":
            safe_open(path, "pt")


OTHERS = {
    "num_workers was 1, and is 2": {"workers": 2},
    "buffer.capacity was 16, and is 20": {"buffer": BufferSpec("FIFO", 20)},
    "buffer.kind was FIFO, and is Reservoir": {"buffer": BufferSpec("Reservoir", 16)},
    "batch_size was 5, and is 4": {"batch_size": 4},
    "merge.every was 1, and is 2": {"every": 2},
    "seed=0, and this trainer has seed=1": {"seed": 1},
    "inputs was given, and is SpacedInputs": {"inputs": SpacedInputs([(0, 1)], 9, list, power=0)},
    "inputs= has 1 items, but [0-9]+ simulations": {"inputs": [[*range(EACH)]]},
    "the input of simulation 0 was another one than .5, 6.": {"inputs": [[5, 6]] * 40},
}


def test_another_study_is_refused_by_name(local, tmp_path):
    inputs = [[*each] for each in split_range(SAMPLES, EACH)]
    run_life(local, tmp_path, stop=StopAt(50), inputs=inputs)
    for message, options in OTHERS.items():
        seed = options.get("seed", 0)
        net = CountingNet(SAMPLES)
        workers = options.get("workers", 1)
        trainer = build_trainer(local, workers, net, COUNTING_SGD, sum_loss, seed=seed)
        given = {"resume": tmp_path / "saves", "progress": False, "every": 1}
        given |= {
            name: value
            for name, value in options.items()
            if name not in ("seed", "workers", "inputs")
        }
        with pytest.raises(ValueError, match=message):
            online(trainer, Noted(tmp_path), options.get("inputs", inputs), **given)
        assert trainer.history == []
    trainer, ended = run_life(local, tmp_path, inputs=inputs)
    assert ended
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES


def two_classes(numbers):
    for number in numbers:
        yield one_hot(number, 4), np.int64(number % 2)


def test_other_class_weights_are_another_study(local, tmp_path):
    given = {"callbacks": [Checkpoint(tmp_path)], "resume": True, "progress": False}
    for weights in (None, [1.0, 2.0]):
        trainer = build_trainer(local, 1, nn.Linear(4, 2), class_weight=weights)
        refused = pytest.raises(ValueError, match=r"class_weight was None, and is .1.0, 2.0")
        with refused if weights else nullcontext():
            online(trainer, two_classes, [range(4)], **given)


def test_saves_of_other_fits_are_refused(local, tmp_path):
    trainer = build_trainer(local, 1, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    x = np.eye(SAMPLES, dtype=np.float32)
    trainer.fit(
        x,
        np.zeros(SAMPLES),
        num_epochs=1,
        batch_size=9,
        callbacks=[Checkpoint(tmp_path)],
        progress=False,
    )
    with pytest.raises(ValueError, match="is not a save of fit_online"):
        run_life(local, tmp_path, resume=tmp_path)
    run_life(local, tmp_path)
    with pytest.raises(ValueError, match="was not written during fit"):
        trainer.fit(
            x,
            np.zeros(SAMPLES),
            num_epochs=1,
            batch_size=9,
            resume=tmp_path / "saves",
            progress=False,
        )
    with pytest.raises(ValueError, match="resume=True takes the folder of a Checkpoint"):
        online(trainer, Noted(tmp_path), split_range(SAMPLES, EACH), resume=True)


def test_a_damaged_buffer_is_not_used(local, tmp_path):
    run_life(local, tmp_path, stop=StopAt(60))
    first, last = list_checkpoints(tmp_path / "saves").values()
    (last / "buffer-0.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=f"buffer-0.safetensors is damaged.*using {first}"):
        trainer, ended = run_life(local, tmp_path)
    assert ended
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), arrays(np.float32, 3)
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.text(), inside, max_size=3)
    ),
)


@given(VALUES)
def test_hashes_of_inputs_are_those_of_their_values(value):
    assert hash_of(value) == hash_of(copy.deepcopy(value)) != 0
    assert hash_of([value]) != hash_of(value)
    assert hash_of({"b": 1, "a": value}) == hash_of({"a": value, "b": 1})
    assert hash_of([value, object()]) == 0


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(-2, 5), max_size=9))
def test_inputs_that_go_on_run_what_is_not_complete_and_then_the_others(values, ends):
    first = Inputs(values)
    for end, _ in zip(ends, values, strict=False):
        simulation, _ = first.next()
        first.end(simulation, end)
    incomplete = [number for number, end in zip(range(len(values)), ends, strict=False) if end == 5]
    saved = first.state_dict(incomplete)
    second = Inputs(values)
    second.resume(saved)
    begun = min(len(values), len(ends))
    assert second.again == [(n, values[n]) for n in range(begun) if ends[n] in (BEGUN, 5)]
    assert second.done == sum(0 <= end < 5 for end in ends[:begun])
    assert second.failed == sum(end == FAILED for end in ends[:begun])
    assert [second.next() for _ in values[begun:]] == [*enumerate(values)][begun:]


def some_samples(value):
    x = np.eye(5, SAMPLES, 2, dtype=np.float32)
    x[:, :2] = value
    return x


class KeepsTables:
    """A sampler that keeps what it is told of losses at the last draw."""

    def next(self, table):
        columns = table.trained, table.loss, table.first_loss, table.excess
        self.told = [column.tolist() for column in columns]
        return super().next(table)


class KeepsSpaced(KeepsTables, SpacedInputs):
    pass


class KeepsBreed(KeepsTables, BreedInputs):
    pass


class KeepsOGAS(KeepsTables, OGASInputs):
    pass


@pytest.mark.parametrize(
    "make",
    [
        partial(KeepsSpaced, network_inputs=some_samples),
        partial(KeepsBreed, start=0.5, end=1.0),
        partial(KeepsOGAS, period=16, start=0.5, end=1.0, steps=2),
    ],
    ids=["spaced", "breed", "ogas"],
)
def test_a_sampler_goes_on_with_its_draws(local, tmp_path, make):
    """In lockstep a study that was killed has the bits, the inputs and the table of losses of an
    undisturbed one.
    """

    def life(folder, stop=None, **more):
        trainer = build_trainer(
            local, 1, dropping(), {"optimizer": "adam", "lr": 0.01}, "mse", seed=3
        )
        given = {
            "callbacks": [Checkpoint(folder), *([] if stop is None else [stop])],
            "progress": False,
        }
        sampler = make([(0, 1), (0, 1)], 30, seed=4)
        with suppress(KeyboardInterrupt):
            trainer.fit_online(
                Simulations(simulate_box, sampler, lockstep=True),
                buffer=FIFO,
                batch_size=5,
                **(given | more),
            )
        drawn = [draw for record in trainer.history for draw in record.get("inputs", ())]
        return trainer, drawn, sampler.told

    undisturbed, inputs, told = life(tmp_path / "undisturbed", checkpoint_every=None)
    assert len(inputs) == 30
    assert len(told[0]) == 30
    for stop in (StopAt(40), StopAt(90, "stop"), None):
        trainer, drawn, told_after_saves = life(
            tmp_path / "saves", stop, checkpoint_every=0.001, resume=True
        )
    assert trainer.resumed_from is not None
    assert drawn == inputs
    assert told_after_saves == told
    assert_same_bits(trainer.get_parameters(), undisturbed.get_parameters())


def simulate_box(value):
    for step, x in enumerate(some_samples(value)):
        pause(0.01)
        yield x, np.array([value[0] * value[1] + step], np.float32)


def test_a_sender_with_a_name_waits_for_the_next_life_and_names_once_what_is_lost(local, tmp_path):
    """Samples that arrived after the last save are lost with the fit."""
    port = free_port()
    warned = []
    address = f"tcp://127.0.0.1:{port}"
    # However slow a life is, samples are left for the next one.
    held_until = {35: threading.Event(), 110: threading.Event()}

    def send():
        with SampleSender(address, "ours alone", "solver") as sender:
            for number in range(SAMPLES):
                pause(0.01)
                if number in held_until:
                    assert held_until[number].wait(LIMIT)
                sender.send(one_hot(number, SAMPLES), np.float32(0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with patch.object(validation, "warn_user", warned.append):
            sending = Thread(send)
            options = {"simulate": False, "senders": 1, "address": address, "token": "ours alone"}
            for stop, life_ended in zip((30, 70), held_until.values(), strict=True):
                run_life(local, tmp_path, stop=StopAt(stop), **options)
                life_ended.set()
            trainer, ended = run_life(local, tmp_path, **options)
            sending.result()
    assert ended
    counts = sample_counts(trainer.get_parameters(), 1)
    lost = [int(text.split()[0]) for text in warned if "samples of 'solver' are lost" in text]
    assert set(counts) <= {0, 1}
    assert counts.count(0) == sum(lost)
    assert len(lost) <= 2
    waits = (
        f"the fit at {address} has failed, or was stopped or killed: sender 'solver' waits "
        "until it is started"
    )
    assert [text.startswith(waits) for text in warned if "lost" not in text] == [True, True]
    assert trainer.history[-1]["received"] == SAMPLES - sum(lost)


def samples_in(history):
    return sum(record["samples"] for record in history)


def test_a_fit_that_ends_before_its_workers_can_be_resumed(local, tmp_path, monkeypatch):
    """As when a worker dies after the save that a signal caused, and has no time to start again."""
    monkeypatch.setattr("compss_train.online.ending.GRACE", 0.0)
    for stop in (StopAt(30, "SIGTERM"), StopAt(60, "SIGTERM")):
        _, ended = run_life(local, tmp_path, stop=stop)
        assert not ended
    trainer, ended = run_life(local, tmp_path)
    assert ended
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES
    assert samples_in(trainer.history) == SAMPLES


class SlowEvaluation(CountingNet):
    def forward(self, x):
        if not self.training:
            pause(0.1)
        return super().forward(x)


class Holds(Callback):
    """Gives another one the trainer of a fit."""

    def __init__(self, other):
        self.other = other

    def on_fit_start(self, trainer, total_samples):
        self.other.trainer = trainer


class Pairs(Callback):
    """Checks that all files of each save belong to it."""

    def __init__(self, folder):
        self.folder = folder
        self.checked = 0

    def on_round_end(self, trainer, record):
        for path in list_checkpoints(self.folder).values():
            content = read_checkpoint(path)
            for number, worker in enumerate(content["study"]["workers"]):
                if (file := content["files"].get(f"buffer-{number}.safetensors")) is not None:
                    buffer = decode_value(torch.from_numpy(np.fromfile(file, np.uint8)))
                    assert buffer["offsets"] == dict(worker["offsets"].tolist())
                    self.checked += 1


def test_saves_and_validation_lose_no_record(local, tmp_path):
    """Evaluations take longer than the interval of records; a save has its own buffers, and its
    record.
    """
    x = np.eye(SAMPLES, dtype=np.float32)[:5]
    given = {"validation_data": (x, np.zeros(5, np.float32)), "net": SlowEvaluation(SAMPLES)}
    add_save = Recorder.add_save
    for received, how in ((20, "stop"), (50, "SIGTERM")):
        stop = StopAt(received, how)
        stop.saved = True
        checks = Pairs(tmp_path / "saves")

        def and_stop(recorder, save, counts, seconds, stop=stop):
            add_save(recorder, save, counts, seconds)  # its evaluation has begun
            stop.on_round_end(stop.trainer, {"received": recorder.reports.received})

        with patch.object(Recorder, "add_save", and_stop):
            callbacks = [Checkpoint(tmp_path / "saves", keep=99), checks, Holds(stop)]
            _, ended = run_life(local, tmp_path, stop=stop, callbacks=callbacks, **given)
        assert not ended
        assert checks.checked > 0
    trainer, ended = run_life(local, tmp_path, **given)
    assert ended
    assert samples_in(trainer.history) == SAMPLES
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES


def test_a_fit_stops_although_its_save_cannot_be_stored(local, tmp_path):
    stop = StopAt(20, "stop")
    stop.saved = True
    warns = pytest.warns(UserWarning, match="the buffer of worker 0 could not be saved")
    with (
        patch.object(Workers, "buffer_of", lambda self, worker: tmp_path / "missing" / "buffer"),
        warns,
    ):
        trainer, _ = run_life(local, tmp_path, stop=stop)
    assert trainer.stopped == "enough"
    assert trainer.history[-1]["received"] < SAMPLES


def touching(path, handle, key):
    """Return a method that touches a file when it has handled a message with a key.

    With ``None`` as key, when it has handled the loss of a client.
    """

    def touch(self, *args, **options):
        result = handle(self, *args, **options)
        if any(arg is key or (isinstance(arg, dict) and key in arg) for arg in args):
            path.touch()
        return result

    return touch


@pytest.fixture
def cut(local, tmp_path):
    """Return a function that runs a study of 6 samples, and the files that say how far it is.

    Of the first life, worker 0 takes part in its only save before ``saved``, and worker 1 after
    ``ends``.
    """
    trains, saved, ends = (tmp_path / name for name in ("trains", "saved", "ends"))

    def life(simulate, inputs, **options):
        net = CountingNet(6, TouchFile(1, trains, until=ends))
        trainer = build_trainer(local, 2, net, COUNTING_SGD, sum_loss, seed=0)
        given = {
            "batch_size": 1,
            "checkpoint_every": None,
            "callbacks": [Checkpoint(tmp_path / "saves")],
        }
        stopping = Thread(lambda: ends.exists() or (wait_for_file(trains), trainer.stop("enough")))
        with patch.object(Workers, "handle", touching(saved, Workers.handle, "part")):
            online(
                trainer,
                simulate,
                inputs,
                resume=True,
                progress=False,
                every=1,
                retries=0,
                **given,
                **options,
            )
        stopping.result()
        return trainer

    return life, trains, saved, ends


@pytest.mark.parametrize("outcome", ["finished", "failed", "killed"])
def test_a_simulation_that_ends_while_workers_save_is_not_complete(cut, tmp_path, outcome):
    """One that is given up then runs again, as its samples would be lost, and is given up after
    them.
    """
    life, trains, saved, ends = cut
    action, times = {
        "finished": (list, 0),
        "failed": (raise_error, 9),
        "killed": (kill_process, 1),
    }[outcome]
    fails = Fault(4, action, tmp_path, times=times)
    last = TouchFile(5 if outcome == "killed" else 4, ends)
    simulate = OneHotSimulation(
        6, CallAll((TouchFile(2, until=trains), TouchFile(2, until=saved), last, fails))
    )
    inputs = [[0, 1, 2, 3, 4], [5]]
    note_death = patch.object(TaskRuns, "handle", touching(ends, TaskRuns.handle, None))
    with note_death if outcome == "killed" else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert life(simulate, inputs).stopped == "enough"
    assert complete_ones(tmp_path / "saves") == []
    failed = r"simulation 0 of input \[0, 1, 2, 3, 4\] failed: ArithmeticError"
    with pytest.warns(UserWarning, match=failed) if outcome == "failed" else nullcontext():
        trainer = life(simulate, inputs)
    assert sample_counts(trainer.get_parameters(), 2) == [1, 1, 1, 1, outcome != "failed", 1]
    assert trainer.history[-1]["simulations"]["failed"] == (outcome == "failed")


@pytest.mark.parametrize("name", ["solver", None])
def test_a_sender_that_ends_while_workers_save_is_not_complete(cut, name):
    """It waits for the save with its last samples: no other program would send those that the save
    lacks.
    """
    life, trains, saved, ends = cut
    given = {"senders": 1, "address": f"tcp://127.0.0.1:{free_port()}", "token": "ours alone"}

    def send():
        with (
            suppress(TrainingEndedError),
            SampleSender(given["address"], "ours alone", name) as sender,
        ):
            for number in range(6):
                if number == 2:
                    wait_for_file(trains)
                    wait_for_file(saved)
                sender.send(one_hot(number, 6), np.float32(0))
            ends.touch()

    for stopped in ("enough", None):
        sending = Thread(send)
        warns = pytest.warns(UserWarning, match="lacks samples of sender 'solver'")
        with warns if name and stopped is None else nullcontext():
            trainer = life(None, (), **given)
        sending.result()
        assert trainer.stopped == stopped
    counts = sample_counts(trainer.get_parameters(), 2)
    assert counts == [1] * 6 if name else min(counts) == 1


def test_other_bounds_of_a_sampler_are_refused(local, tmp_path, raises):
    def life(*bounds, stop=None):
        trainer = build_trainer(
            local, 1, nn.Linear(SAMPLES, 1), {"optimizer": "sgd", "lr": 0.01}, "mse", seed=3
        )
        callbacks = [Checkpoint(tmp_path), *([] if stop is None else [stop])]
        with suppress(KeyboardInterrupt):
            options = {
                "checkpoint_every": 0.001,
                "callbacks": callbacks,
                "resume": True,
                "progress": False,
            }
            trainer.fit_online(
                Simulations(simulate_box, SpacedInputs(list(bounds), 10, some_samples)),
                buffer=FIFO,
                batch_size=5,
                **options,
            )
        return trainer

    life((0, 1), (0, 1), stop=StopAt(10))
    with raises(
        ValueError,
        (
            "bounds=[[0.0, 1.0], [0.0, 2.0]]: the inputs drawn so far have "
            "bounds=[[0.0, 1.0], [0.0, 1.0]]"
        ),
    ):
        life((0, 1), (0, 2))
    assert life((0, 1), (0, 1)).history[-1]["simulations"]["done"] == 10


def test_the_end_of_a_study_tells_how_many_simulations_were_given_up(local, tmp_path):
    simulate = OneHotSimulation(6, Fault(2, raise_error, tmp_path, times=9))

    def life():
        trainer = build_trainer(local, 1, CountingNet(6), COUNTING_SGD, sum_loss, seed=0)
        given = {
            "retries": 0,
            "resume": True,
            "callbacks": [Checkpoint(tmp_path / "saves")],
            "progress": False,
        }
        online(trainer, simulate, split_range(6, 2), **given)

    with (
        pytest.warns(UserWarning, match="skipped after 1 failures"),
        pytest.warns(UserWarning, match="1 of 3 simulations were given up"),
    ):
        life()
    with pytest.warns(
        UserWarning, match=("nothing is left to train; 1 of its simulations were given up")
    ):
        life()


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # uploads to S3 are those of fits
def test_a_study_goes_on_from_an_object_store(local, tmp_path, store):
    """Its saves are uploaded with the buffers; one whose upload was cut is not used."""
    system, path = locations.file_system(store)
    for stop in (StopAt(30), StopAt(70)):
        run_life(local, tmp_path, stop=stop, callbacks=[Checkpoint(store, keep=2), stop])
    names = [name for name in system.ls(path, detail=False) if "round-" in name]
    assert len(names) == 2
    assert all(system.exists(f"{name}/buffer-0.safetensors") for name in names)
    system.rm(f"{max(names)}/state.json")
    with pytest.warns(UserWarning, match=r"it has no state.json; using .* instead"):
        trainer, ended = run_life(local, tmp_path, callbacks=[Checkpoint(store)])
    assert ended
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES
    with pytest.warns(UserWarning, match="is the end of its study"):
        again, _ = run_life(local, tmp_path, callbacks=[], resume=store)
    assert_same_bits(again.get_parameters(), trainer.get_parameters())


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
def test_a_limit_of_repetitions_holds_over_the_lives(local, tmp_path, kind):
    """The buffer's counts of samples put and got survive."""
    options = {"buffer": BufferSpec(kind, 16, threshold=6, max_repeats=2), "batch_size": 3}
    for stop in (StopAt(30), StopAt(70, "SIGTERM")):
        _, ended = run_life(local, tmp_path, stop=stop, **options)
        assert not ended
    trainer, ended = run_life(local, tmp_path, **options)
    assert ended
    for record in trainer.history:
        limit = 2 * record["received"] + (16 if record["simulations"]["done"] == 12 else 0)
        assert record["repetitions_mean"] * record["received"] <= limit + 1e-6
    counts = sample_counts(trainer.get_parameters(), 1)
    assert min(counts) >= 1
    assert trainer.history[-1]["repetitions"] == [
        counts.count(times) for times in range(max(counts) + 1)
    ]


@dataclass(frozen=True)
class Stepped:
    before: Callable[[int], None]

    def __call__(self, number):
        for step in range(8):
            self.before(8 * number + step)
            yield step, one_hot(8 * number + step, SAMPLES), np.float32(0)


def both(earlier, later):
    return earlier.data[0] + later.data[0], later.data[1]


def test_pairs_go_on(local, tmp_path):
    """Each time step is in a pair at least once over the lives, with the reservoir's own counts."""
    spec = BufferSpec("SimPairedReservoir", 24, threshold=6, sweep_size=15, nb_time_steps=8)
    given = {
        "buffer": spec,
        "pairing": both,
        "batch_size": 3,
        "checkpoint_every": 0.001,
        "progress": False,
    }

    def life(stop=None):
        trainer = build_trainer(local, 2, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
        callbacks = [Checkpoint(tmp_path), *([] if stop is None else [stop])]
        with held(tmp_path, stop) as before, suppress(KeyboardInterrupt):
            online(
                trainer,
                Stepped(before),
                range(15),
                count=2,
                every=1,
                resume=True,
                callbacks=callbacks,
                **given,
            )
        return trainer

    for stop in (StopAt(30), StopAt(60, "stop"), StopAt(90)):
        assert life(stop).history[-1]["received"] < SAMPLES
    trainer = life()
    counts = sample_counts(trainer.get_parameters(), 2)
    assert min(counts) >= 1
    assert sum(counts) == 2 * samples_in(trainer.history)
    assert trainer.history[-1]["repetitions"] == [
        counts.count(times) for times in range(max(counts) + 1)
    ]


def test_an_older_save_is_gone_on_from_by_its_name(local, tmp_path):
    """Also what came after it is trained again, once, and takes the place of the later saves."""
    run_life(
        local,
        tmp_path,
        stop=StopAt(70),
        callbacks=[Checkpoint(tmp_path / "saves", keep=99), StopAt(70)],
    )
    saves = list_checkpoints(tmp_path / "saves")
    older = sorted(saves)[len(saves) // 3]
    trainer, ended = run_life(local, tmp_path, resume=saves[older])
    assert ended
    assert trainer.resumed_from == saves[older]
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES
    assert samples_in(trainer.history) == SAMPLES
    assert [record["round"] for record in trainer.history] == list(range(len(trainer.history)))
    with pytest.warns(UserWarning, match="is the end of its study"):
        again, _ = run_life(local, tmp_path)
    assert_same_bits(again.get_parameters(), trainer.get_parameters())


def test_a_save_that_comes_too_late_for_workers_that_were_stopped_is_none(
    local, tmp_path, monkeypatch
):
    """Worker 1 takes part in it when worker 0, which has taken part before, has ended."""
    trains = tmp_path / "trains"
    done = tmp_path / "done"
    simulate = OneHotSimulation(12, CallAll((TouchFile(2, until=trains), TouchFile(5, until=done))))
    monkeypatch.setattr("compss_train.online.ending.LONGEST_SAVING", 0.5)

    def life(*callbacks):
        trainer = build_trainer(
            local,
            2,
            CountingNet(12, TouchFile(1, trains, until=done)),
            COUNTING_SGD,
            sum_loss,
            seed=0,
        )
        given = {
            "batch_size": 1,
            "every": 1,
            "checkpoint_every": None,
            "resume": True,
            "progress": False,
        }
        with suppress(SystemExit):
            online(
                trainer,
                simulate,
                [range(12)],
                callbacks=[Checkpoint(tmp_path / "saves"), *callbacks],
                **given,
            )
        return trainer

    stop = StopAt(3, "SIGTERM")
    stop.saved = True
    with patch.object(Workers, "handle", touching(done, Workers.handle, "done")):
        assert life(stop).stopped == "SIGTERM"
    assert sample_counts(life().get_parameters(), 2) == [1] * 12


def test_a_fit_that_has_its_batches_is_no_failure_of_the_first_source(local, tmp_path):
    """Although none is complete: the others have not begun."""
    failed = tmp_path / "failed"
    port = free_port()
    given = {
        "senders": 2,
        "address": f"tcp://127.0.0.1:{port}",
        "token": "ours alone",
        "progress": False,
    }

    def send():
        with suppress(ArithmeticError), SampleSender(given["address"], "ours alone") as sender:
            for number in range(10):
                sender.send(one_hot(number, 10), np.float32(0))
            raise ArithmeticError("a singular matrix")

    trainer = build_trainer(
        local, 1, CountingNet(10, TouchFile(0, until=failed)), COUNTING_SGD, sum_loss
    )
    sending = Thread(send)
    note = patch.object(
        ExternalSenders, "handle", touching(failed, ExternalSenders.handle, "failed")
    )
    with note, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        online(trainer, None, (), batch_size=5, max_batches=1, **given)
    sending.result()
    assert "1 of 1 simulations were given up" in str(warned[-1].message)
    assert sum(sample_counts(trainer.get_parameters(), 1)) == 5
