"""The path of ``COMPSS_TRAIN_UNFINISHED`` exists as long as a fit is unfinished."""

import os
import signal

import pytest

from tests.helpers.callbacks import CallAt
from tests.helpers.small_fits import fit, trainer_of


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "job" / "unfinished"
    monkeypatch.setenv("COMPSS_TRAIN_UNFINISHED", str(path))
    return path


def test_the_path_exists_until_the_fit_is_complete(path):
    existed = []
    fit(trainer_of(), CallAt("round_end", lambda _: existed.append(path.exists())))
    assert existed == [True]
    assert not path.exists()


def test_a_fit_out_of_time_is_unfinished_until_it_is_complete(path):
    trainer = trainer_of()
    fit(trainer, max_time=1e-9)
    assert trainer.stopped == "max_time"
    assert path.exists()
    fit(trainer_of())
    assert path.exists()
    fit(trainer)
    assert not path.exists()


def test_a_fit_that_sigterm_has_stopped_is_unfinished(path):
    trainer = trainer_of()
    with pytest.raises(SystemExit):
        fit(trainer, CallAt("round_end", lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    assert path.exists()
    fit(trainer)
    assert not path.exists()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_fit_that_fails_is_not_to_be_repeated(path, error):
    def fail(_):
        raise error

    with pytest.raises(error):
        fit(trainer_of(), CallAt("round_end", fail))
    assert not path.exists()


def test_a_fit_that_a_callback_stops_is_complete(path):
    fit(trainer_of(), CallAt("round_end", lambda trainer: trainer.stop("enough")))
    assert not path.exists()


def test_a_fit_of_another_process_keeps_the_path(path):
    path.mkdir(parents=True)
    (path / "other-1").touch()
    fit(trainer_of())
    assert [file.name for file in path.iterdir()] == ["other-1"]


def test_a_path_that_cannot_be_made_is_an_error_before_the_fit(path):
    path.parent.touch()
    trainer = trainer_of()
    with pytest.raises(NotADirectoryError) as caught:
        fit(trainer)
    assert "COMPSS_TRAIN_UNFINISHED" in caught.value.__notes__[0]
    assert not trainer.history
