"""The file with the state of a study: written, read, and what is wrong with it."""

import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from compss_train.exceptions import BadFileError
from compss_train.reports.study_state import (
    KILLED,
    RUNNING,
    STALE_SECONDS,
    STUDY_FILE,
    StudyState,
    here,
    read_study_state,
)


def state_of(**fields):
    now = time.time()
    return StudyState(
        **{
            "state": RUNNING,
            **here(),
            "started": now - 90,
            "written": now,
            "resumed_from": None,
            "inputs": {"running": 1, "done": 2, "failed": 1, "awaited": None},
            "received": 1234,
            "received_per_second": 45.6,
            "trained_per_second": None,
            "buffer": 40,
            "workers": [{"worker": 0, "node": "n1", "process": 7, "done": False}],
            "simulations": [
                {
                    "simulation": 3,
                    "input": "[1.0, 2.0]",
                    "node": "n2",
                    "process": 8,
                    "seconds": 12.3,
                    "failures": 1,
                }
            ],
            "senders": [],
            "failed": ["simulation 0 of input 5"],
            **fields,
        }
    )


@pytest.mark.parametrize("name", [".", STUDY_FILE, ".."])
def test_a_state_is_read_from_its_folder_its_file_and_the_folder_above(tmp_path, name):
    folder = tmp_path / "study"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    state = state_of(received_per_second=float("nan"))
    state.write(folder)
    state = replace(state, received=5, received_per_second=float("inf"))
    state.write(folder)
    assert read_study_state(folder / name) == state
    assert [path.name for path in folder.iterdir()] == [STUDY_FILE]


def test_a_study_whose_process_has_ended_without_a_word_was_killed():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert state_of(process=ended.pid).present_state == KILLED
    assert not state_of(process=ended.pid, written=0.0).is_stale
    assert state_of(process=ended.pid, state="complete").present_state == "complete"
    assert state_of().present_state == RUNNING
    elsewhere = state_of(process=ended.pid, node=f"not-{socket.gethostname()}")
    assert elsewhere.present_state == RUNNING  # nobody knows


def test_a_study_that_writes_nothing_for_long_is_stale():
    late = time.time() - STALE_SECONDS - 1
    assert state_of(written=late).is_stale
    assert not state_of(written=late + 10).is_stale
    assert not state_of(written=late, state="complete").is_stale
    assert state_of(written=time.time() + 100).age == 0.0


def test_what_is_no_study_is_an_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="does not exist: name the folder of the Checkpoint"
    ):
        read_study_state(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"has no study.json: name the folder"):
        read_study_state(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        state_of().write(tmp_path / name)
    with pytest.raises(ValueError, match=r"has several studies: name one of .*/a, .*/b"):
        read_study_state(tmp_path)
    for text in ("", "[1, 2]", '{"state": "running"}', "[" * 10**5, "\xff"):
        (tmp_path / "a" / STUDY_FILE).write_bytes(text.encode("latin-1"))
        with pytest.raises(BadFileError, match="is not the state of a study"):
            read_study_state(tmp_path / "a")
