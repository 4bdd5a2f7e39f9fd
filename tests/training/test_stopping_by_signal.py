"""SIGTERM ends a fit with a checkpoint, and the program."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from compss_train import SerialEngine
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints
from compss_train.training.stopping import Stopping
from tests.helpers.callbacks import CallAt, EndCounter
from tests.helpers.documents import ROOT
from tests.helpers.processes import session, wait_until
from tests.helpers.serial_engines import LookaheadEngine
from tests.helpers.small_fits import assert_alike, fit, trainer_of


@contextmanager
def handler_of(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate(trainer):
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("hook", ["fit_start", "round_start", "round_end", "fit_end"])
@pytest.mark.parametrize("engine", [SerialEngine, LookaheadEngine])
def test_sigterm_ends_the_program_with_a_checkpoint(engine, tmp_path, capsys, hook):
    stopped, whole, again, ended = trainer_of(engine()), trainer_of(), trainer_of(), EndCounter()
    with handler_of(signal.SIG_DFL):
        with pytest.raises(SystemExit) as caught:
            fit(stopped, Checkpoint(tmp_path, every=99), ended, CallAt(hook, terminate, 0 if "fit" in hook else 1))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert caught.value.code == 143
    assert (ended.ends, ended.errors) == (1, 0)
    done = {"fit_start": 0, "fit_end": 3}.get(hook, 2)
    assert stopped.stopped == ("SIGTERM" if done < 3 else None)
    assert len(stopped.history) == done
    last = f"last complete round: {done - 1}" if done else "no round completed"
    assert capsys.readouterr().err == f"compss_train: fit interrupted by SIGTERM; {last}\n"
    assert list(list_checkpoints(tmp_path)) == ([done - 1] if done else [])
    fit(whole)
    fit(again, Checkpoint(tmp_path), resume=True)
    assert_alike(again, whole)


def test_sigterm_in_the_last_moment_is_not_lost():
    stopping = Stopping()
    with handler_of(signal.SIG_DFL):
        with pytest.raises(SystemExit) as caught, stopping.on_sigterm():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert caught.value.code == 143


def test_what_is_raised_when_sigterm_comes_goes_first():
    """And the handler is as it was, as after any fit."""

    def terminate_and_fail(trainer):
        signal.raise_signal(signal.SIGTERM)
        raise OSError("mine")

    with handler_of(signal.SIG_DFL):
        with pytest.raises(OSError, match="mine"):
            fit(trainer_of(), CallAt("round_end", terminate_and_fail))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        fit(trainer_of())
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_programs_own_is_left_alone():
    told = []

    def own(number, frame):
        told.append(number)

    for handler in (own, signal.SIG_IGN):
        trainer = trainer_of()
        with handler_of(handler):
            fit(trainer, CallAt("round_end", terminate))
            assert signal.getsignal(signal.SIGTERM) is handler
        assert (trainer.stopped, len(trainer.history)) == (None, 3)
    assert told == [signal.SIGTERM]


@pytest.mark.slow
def test_a_script_that_gets_sigterm_with_all_its_processes(tmp_path):
    """As a batch system sends it. The round under way would take minutes. tests/trainer/test_faults.py has less."""
    command = [sys.executable, "-m", "tests.helpers.stuck_fit_program", str(tmp_path)]
    script = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list_checkpoints(tmp_path), 60)
    os.killpg(script.pid, signal.SIGTERM)
    wait_until(lambda: script.poll() is not None and not session(script.pid), 15)
    done = max(list_checkpoints(tmp_path))
    assert script.communicate()[1] == f"compss_train: fit interrupted by SIGTERM; last complete round: {done}\n"
    assert script.returncode == 143
    whole, again = trainer_of(), trainer_of()
    fit(whole, num_epochs=4)
    fit(again, resume=tmp_path, num_epochs=4)
    assert_alike(again, whole)
