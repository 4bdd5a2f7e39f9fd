"""Progress of a fit: a bar in terminals, lines elsewhere, or nothing."""

import errno
import io
import logging
import os
import pty
import re
import sys
import termios
from importlib.util import find_spec

import numpy as np
import pytest

from compss_train import BufferSpec, Merge, PartialShuffle
from compss_train.callbacks import Checkpoint, ProgressBar, RoundLines
from compss_train.callbacks.progress import with_progress
from compss_train.engines import Resources
from tests.helpers.callbacks import CallAt, StopAfter
from tests.helpers.models import mlp
from tests.helpers.small_fits import X, Y, fit, trainer_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, *callbacks, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    trainer = trainer_of()
    fit(trainer, *callbacks, **{"progress": True, **options})
    monkeypatch.undo()
    return trainer, stream.getvalue()


def test_terminals_show_a_bar(monkeypatch):
    trainer, text = shown(monkeypatch, Terminal())
    last = text.split("\r")[-1]
    assert "100%" in last
    assert "171/171" in last
    assert f"epoch=3, loss={trainer.history[-1]['loss']:.4f}" in last
    assert text.startswith("\rstarting 3 workers: ")
    assert text.count("starting") == 1
    assert text.endswith("\n")


@pytest.mark.parametrize("merges", [{}, {"merge": Merge(every=1, unit="blocks")}])
def test_a_line_for_each_epoch_stays_above_the_bar(monkeypatch, merges):
    trainer, text = shown(monkeypatch, Terminal(), **merges)
    last_of = {record["epoch"]: record for record in trainer.history}
    lines = [line for line in re.split("[\r\n]", text) if line.startswith("epoch ")]
    assert len(lines) == 3
    for line, record in zip(lines, last_of.values(), strict=True):
        assert line.startswith(f"epoch {record['epoch']}, loss {record['loss']:.4f}, accuracy ")
        assert line.endswith(" samples/s")


def test_the_bar_has_the_width_that_the_window_has_now(monkeypatch):
    """A widget takes this as 100%; else it does not shrink, and in narrow notebooks only its text
    is seen.
    """
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        widen = [
            CallAt(
                hook,
                lambda _, columns=columns: termios.tcsetwinsize(theirs, (24, columns)),
                number=number,
            )
            for hook, number, columns in (("fit_start", 0, 60), ("round_end", 1, 120))
        ]
        termios.tcsetwinsize(theirs, (24, 60))
        monkeypatch.setattr(sys, "stderr", terminal)
        fit(trainer_of(), *widen, progress=True)
        monkeypatch.undo()
        bars = [
            len(bar) for bar in re.split("[\r\n]+", os.read(ours, 1 << 16).decode()) if "%|" in bar
        ]
    os.close(ours)
    assert max(bars) > 100
    assert bars[0] <= 60


def test_engines_report_the_samples_that_were_trained(engine):
    trainer = trainer_of(engine)
    counts = []
    at = [
        CallAt(hook, lambda each: counts.append(each.trained_samples()), number=number)
        for hook, number in (("fit_start", 0), ("round_end", 2))
    ]
    fit(trainer, *at, validation_data=(X, Y))
    assert counts[1] - counts[0] == 3 * len(X)


def test_other_streams_show_a_line_per_round(monkeypatch):
    trainer, text = shown(monkeypatch, io.StringIO())
    first, *lines = text.splitlines()
    assert first == "starting 3 workers"
    assert len(lines) == 3
    for number, (line, record) in enumerate(zip(lines, trainer.history, strict=True)):
        assert line.startswith(
            f"round {number}, epoch {number + 1}, loss {record['loss']:.4f}, accuracy "
        )
        assert line.endswith(f", {record['samples_per_second']:,.0f} samples/s")


def test_logs_tell_what_happens_to_programs_that_ask(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "compss_train"):
        fit(trainer_of(), Checkpoint(tmp_path), num_epochs=1)
        fit(trainer_of(), resume=tmp_path, num_epochs=2)
    assert {name.partition(".")[0] for name, *_ in caplog.record_tuples} == {"compss_train"}
    path = tmp_path / "round-000000"
    expected = [
        "a fit of 1 epochs with 3 workers on serial begins at epoch 0",
        "round 0 of epoch 1: loss ",
        f"wrote {path}",
        "the fit has ended (complete)",
        f"a fit of 2 epochs with 3 workers on serial begins from {path}",
        "round 1 of epoch 2: loss ",
        "the fit has ended (complete)",
    ]
    for message, beginning in zip(caplog.messages, expected, strict=True):
        assert message.startswith(beginning)


@pytest.mark.parametrize("kind", [ProgressBar, RoundLines])
def test_a_progress_callback_replaces_the_default(monkeypatch, kind):
    own = io.StringIO()
    assert shown(monkeypatch, Terminal(), kind(own))[1] == ""
    assert "loss" in own.getvalue()
    assert with_progress([kind()])[0].__class__ is kind
    assert len(with_progress([kind()])) == 1


def test_a_resumed_fit_shows_the_remaining_samples(monkeypatch, tmp_path):
    fit(trainer_of(), Checkpoint(tmp_path), num_epochs=1)
    message = f"resumed from {tmp_path}/round-000000"
    _, text = shown(monkeypatch, Terminal(), resume=tmp_path)
    assert text.startswith(f"{message}\n")
    assert "114/114" in text.split("\r")[-1]
    _, lines = shown(monkeypatch, io.StringIO(), resume=tmp_path)
    begins = [line.split(",")[0] for line in lines.splitlines()]
    assert begins == [message, "starting 3 workers", "round 1", "round 2"]
    _, lines = shown(monkeypatch, io.StringIO(), resume=tmp_path, num_epochs=1)
    assert lines == f"{message}; nothing is left to train: raise num_epochs to continue\n"


TOO_FEW = "batches have {} samples at most, not batch_size={}: there are no more in "


def test_what_is_worth_a_line_comes_first(monkeypatch, shared_local):
    """Workers that take turns, batches without enough samples, and integers that become floats."""
    monkeypatch.setattr(sys, "stderr", text := io.StringIO())
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"rooms": range(60), **{f"x{number}": np.ones(60, "float32") for number in range(5)}}
    )
    workers = 10 * shared_local.slots(Resources())
    fit(
        trainer_of(shared_local, workers, net=mlp),
        data=(frame, np.zeros(60, int)),
        batch_size=7,
        progress=True,
    )
    integers, batches, turns, start, *_ = text.getvalue().splitlines()
    assert integers.startswith("the integers of 'rooms' in x become float32")
    assert batches == TOO_FEW.format(-(-60 // workers), 7) + f"any of {workers} blocks"
    assert turns.startswith(
        f"{workers} workers take turns, as {workers // 10} can train at a time: "
    )
    assert start == f"starting {workers} workers"


IN_BLOCKS = TOO_FEW.format(9, 10) + "any of 7 blocks"
IN_SHARES = TOO_FEW.format(19, 20) + "the share of each of 3 workers"


@pytest.mark.parametrize(
    ("options", "remarks"),
    [
        ({"batch_size": 9}, []),
        ({"batch_size": 10}, [IN_BLOCKS]),
        ({"num_batches_per_worker": 2}, []),
        ({"batch_size": 19, "shuffle": "total"}, []),
        ({"batch_size": 20, "shuffle": "total"}, [IN_SHARES]),
        ({"batch_size": 20, "shuffle": PartialShuffle()}, [IN_SHARES]),
        ({"batch_size": 20, "buffer": BufferSpec("FIFO", 57)}, [IN_SHARES]),
    ],
)
def test_batches_that_the_data_are_too_few_for_are_told(options, remarks):
    told = []
    fit(trainer_of(), CallAt("fit_start", lambda trainer: told.extend(trainer.remarks)), **options)
    assert told == remarks


class Full(io.StringIO):
    """A file on a full disk, or of a reader that is gone."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class GoneTerminal(Terminal):
    def write(self, text):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [lambda: None, closed, Full, GoneTerminal])
def test_a_fit_goes_on_where_nothing_can_be_printed(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    trainer = trainer_of()
    fit(trainer, progress=True, num_epochs=3)
    assert len(trainer.history) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_progress_is_true_or_false(value):
    with pytest.raises(ValueError, match=f"progress={value!r}: choose one of True, False"):
        fit(trainer_of(), progress=value)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_the_reason_of_a_stop_is_printed_last(monkeypatch, stream):
    _, text = shown(monkeypatch, stream(), StopAfter(1))
    assert text.endswith("\nstopped after round 1: enough\n")
    _, text = shown(monkeypatch, stream(), max_time=1e-6)
    assert text.endswith("stopped in the first round: max_time\n")


CELL = """
import numpy as np
from torch import nn

from compss_train import DistributedTrainer

trainer = DistributedTrainer(1, engine="serial", seed=0)
trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
trainer.fit(np.zeros((40, 4), np.float32), np.zeros(40, np.int64), num_epochs=2, batch_size=10);
"""


def test_notebooks_without_widgets_show_a_line_per_round_and_no_warning():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    if find_spec("ipywidgets"):
        pytest.skip("with widgets there is a bar")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    (cell,) = nbclient.NotebookClient(notebook, kernel_name="python3").execute().cells
    assert {output.name for output in cell.outputs} == {"stdout"}  # errors are shown in red
    text = "".join(output.text for output in cell.outputs)
    assert re.fullmatch("starting 1 worker\n(round [01], epoch [12], loss .*\n){2}", text)
