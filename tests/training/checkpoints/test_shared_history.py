"""The history is written once, and every checkpoint has all of it: alone, copied, without hard
links.
"""

import errno
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.callbacks import Callback, Checkpoint
from compss_train.reports import history as reports
from compss_train.reports.history import History, line_of
from compss_train.training import shared_history
from compss_train.training.checkpoints import (
    Disk,
    checkpoint_path,
    delete_checkpoint,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from compss_train.training.shared_history import SharedHistory
from tests.helpers.callbacks import InterruptAt
from tests.helpers.small_fits import assert_alike, fit, trainer_of


class CountingDisk(Disk):
    """Counts the bytes that are written, and may have no hard links."""

    def __init__(self, links=True):
        self.written = 0
        self.linked = 0
        self.links = links

    def write(self, path, write):
        super().write(path, write)
        self.written += path.stat().st_size

    def link(self, old, new):
        if not self.links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        super().link(old, new)
        self.linked += 1


def record_of(number, **more):
    return {"round": number, "ended": number + 0.5, "loss": 1 / (number + 3), **more}


def saved_histories(folder):
    return {
        number: read_checkpoint(path)["history"]
        for number, path in list_checkpoints(folder).items()
    }


class Run:
    """A fit as its checkpoints see it: a history that grows."""

    def __init__(self, folder, disk=None):
        self.folder = folder
        self.history = []
        self.disk = disk or CountingDisk()
        self.shared = SharedHistory()

    def train(self, rounds=1):
        start = len(self.history)
        self.history += [record_of(number) for number in range(start, start + rounds)]

    def save(self):
        path = checkpoint_path(self.folder, len(self.history) - 1)
        write_checkpoint(path, {"history": self.history}, self.disk, self.shared)
        return path


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 8),
    st.booleans(),
    st.integers(0, 2**12),
)
def test_every_checkpoint_has_the_whole_history(tmp_path_factory, steps, longest, links, removed):
    """Whatever its rounds, the length of files, and which checkpoints were removed meanwhile."""
    run = Run(tmp_path_factory.mktemp("it"), CountingDisk(links))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_history, "LONGEST", longest)
        for number, step in enumerate(steps):
            run.train(step)
            path = run.save()
            assert read_checkpoint(path)["history"] == run.history
            if removed >> number & 1:
                delete_checkpoint(path)
    for number, history in saved_histories(run.folder).items():
        assert history == run.history[: number + 1]
    assert links or not run.disk.linked


def bytes_of_rounds(run, rounds, every=1):
    """Return the bytes of a checkpoint, on average, and the most files that one has."""
    run.train(every)
    run.save()
    before = run.disk.written
    files = 0
    for _ in range(rounds):
        run.train(every)
        files = max(files, len(list(run.save().iterdir())))
        for path in list(list_checkpoints(run.folder).values())[:-2]:
            delete_checkpoint(path)
    return (run.disk.written - before) / rounds, files


@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints_write_no_more_bytes_after_many_rounds(tmp_path, monkeypatch, every):
    monkeypatch.setattr(shared_history, "LONGEST", 16)
    monkeypatch.setattr(Disk, "sync", lambda self, path: None)
    run = Run(tmp_path)
    early, _ = bytes_of_rounds(run, 64, every)
    run.train(20_000)
    run.save()
    late, files = bytes_of_rounds(run, 64, every)
    # The names of files in the state are one more a file; numbers of rounds have some digits more.
    assert late < early + 64 * files + 8 * every * (5 + 1)
    assert early < (every + 1) * (1 + 5) * len(line_of(run.history[-1])) + 1000
    assert len(run.history) == 20_000 + 2 * 65 * every
    (*_, last) = saved_histories(tmp_path).values()
    assert last == run.history


def test_what_the_last_record_gets_later_is_in_the_next_checkpoint(tmp_path):
    run = Run(tmp_path)
    for number in range(5):
        run.train()
        run.save()
        run.history[-1]["later"] = number
    histories = saved_histories(tmp_path)
    assert ["later" in record for record in histories[3]] == [True, True, True, False]
    assert histories[4][:4] == run.history[:4]


@pytest.mark.parametrize("change", ["removed", "replaced", "edited"])
def test_what_others_do_to_the_last_checkpoint_is_not_shared(tmp_path, change):
    run = Run(tmp_path)
    run.train(5)
    path = run.save()
    if change == "edited":
        os.utime(path, (0, 0))
    else:
        shutil.rmtree(path)
    if change == "replaced":
        write_checkpoint(path, {"history": [record_of(number, other=True) for number in range(5)]})
    run.train()
    assert read_checkpoint(run.save())["history"] == run.history
    assert run.disk.linked == 0
    run.train()
    run.save()
    assert run.disk.linked > 0


def test_another_history_is_not_taken_for_this_one(tmp_path):
    run = Run(tmp_path)
    run.train(5)
    run.save()
    run.history[:] = [record_of(number, ended=number) for number in range(7)]
    assert read_checkpoint(run.save())["history"] == run.history


def test_a_failed_checkpoint_is_not_shared(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.train(5)
    run.save()
    run.train()
    monkeypatch.setattr(run.disk, "rename", full)
    with pytest.raises(OSError, match="No space"):
        run.save()
    monkeypatch.undo()
    run.train()
    assert read_checkpoint(run.save())["history"] == run.history


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_worker_entries_that_memory_has_lost_do_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "MOST_WORKER_ENTRIES", 12)
    trainer = trainer_of(workers=3)
    again = trainer_of(workers=3)
    fit(trainer, Checkpoint(tmp_path, keep=99), num_epochs=11)
    assert [len(record["workers"]) for record in trainer.history] == [0] * 7 + [3] * 4
    for number, history in saved_histories(tmp_path).items():
        expected = History()
        for record in history:
            expected.append({**record, "workers": trainer.history[-1]["workers"]})
        workers = [len(record["workers"]) for record in history]
        assert workers == [len(record["workers"]) for record in expected], number
    again.restore(tmp_path)
    assert again.history == trainer.history


class Other(Callback):
    """Has a value of its own in every record, after checkpoints are written."""

    def on_round_end(self, trainer, record):
        record["mine"] = record["round"] ** 2


def test_a_checkpoint_alone_is_resumed_with_its_history(tmp_path):
    whole = trainer_of()
    again = trainer_of()
    fit(whole, Checkpoint(tmp_path / "run", keep=9), Other(), num_epochs=6)
    alone = shutil.move(tmp_path / "run" / "round-000003", tmp_path / "round-000003")
    shutil.rmtree(tmp_path / "run")
    fit(again, Checkpoint(tmp_path / "new", keep=9), Other(), resume=alone, num_epochs=6)
    del whole.history[3]["mine"], again.history[3]["mine"]  # which is after the checkpoint
    assert_alike(again, whole)
    assert list(saved_histories(tmp_path / "new")) == [4, 5]


def test_going_back_to_an_older_checkpoint_takes_no_newer_rounds(tmp_path):
    first = trainer_of()
    back = trainer_of()
    fit(first, Checkpoint(tmp_path, keep=9), num_epochs=6)
    before = saved_histories(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(
            back,
            Checkpoint(tmp_path, keep=9),
            InterruptAt(4),
            resume=tmp_path / "round-000002",
            num_epochs=6,
        )
    after = saved_histories(tmp_path)
    assert after[3] == back.history[:4] != before[3]  # it was trained again
    assert {**after, 3: before[3]} == {number: before[number] for number in range(4)}
