"""``compss-train watch``: what it prints of studies that run, have ended, or were killed."""

import json
import subprocess
import sys
import time

import pytest

from compss_train.cli import main, studies
from tests.reports.test_study_state import state_of


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    return folder


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_running_study_is_printed(folder, capsys):
    state_of(resumed_from="round-000012").write(folder)
    assert main(["watch", str(folder)]) == 0
    heading, inputs, samples, failed, *tables = capsys.readouterr().out.splitlines()
    assert heading.startswith(f"{folder}: running (process ")
    assert heading.endswith(", from round-000012)")
    assert "1 min 30 s" in heading
    assert inputs == "inputs: 1 running, 2 done, 1 failed, ? awaited"
    assert samples == "samples: 1,234 received, 40 in buffers, 45.6 received a second"
    assert failed == "given up: simulation 0 of input 5"
    assert tables == [
        "",
        "worker  node  process  done",
        "0       n1    7        no",
        "",
        "simulation  input       node  process  seconds  failures",
        "3           [1.0, 2.0]  n2    8        12       1",
    ]


def test_programs_read_json(folder, capsys):
    state = state_of()
    state.write(folder)
    assert main(["watch", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["inputs"] == state.inputs
    assert printed["simulations"] == state.simulations
    assert (printed["state"], printed["stale"]) == ("running", False)
    assert 0 <= printed["age"] < 60


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"state": "complete"}, 0, "complete (process"),
        ({"state": "stopped: max_time"}, 0, "stopped: max_time (process"),
        ({"state": "failed: DivergedError: NaN"}, 1, "failed: DivergedError: NaN (process"),
        ({"process": ended_process}, 1, "killed "),
        ({"written": lambda: time.time() - 100}, 1, "nothing was written for 1 min 40 s"),
    ],
)
def test_exit_codes_say_whether_all_is_well(folder, capsys, monkeypatch, fields, code, said):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    fields = {name: value() if callable(value) else value for name, value in fields.items()}
    state_of(**fields).write(folder)
    assert main(["watch", str(folder)]) == code
    assert said in capsys.readouterr().out


def test_it_prints_again_until_the_study_has_ended(folder, capsys, monkeypatch):
    state_of().write(folder)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            state_of(state="complete").write(folder)

    monkeypatch.setattr(studies.time, "sleep", sleep)
    assert main(["watch", str(folder), "--every", "2.5"]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if "(process" in line]
    assert [heading.split(": ")[1].split(" (")[0] for heading in headings] == [
        *("running", "running", "complete")
    ]
    assert slept == [2.5, 2.5]


def test_texts_of_a_study_cannot_control_the_terminal(folder, capsys):
    state_of(failed=["simulation 0 of input \x1b[2J"]).write(folder)
    main(["watch", str(folder)])
    assert "\x1b" not in capsys.readouterr().out


def test_no_study_and_a_wrong_interval_are_errors(folder, capsys):
    assert main(["watch", str(folder)]) == 2
    assert "has no study.json: name the folder of the Checkpoint" in capsys.readouterr().err
    state_of().write(folder)
    assert main(["watch", str(folder), "--every", "-1"]) == 2
    assert "--every=-1.0" in capsys.readouterr().err


def test_watching_needs_no_torch(folder):
    state_of(state="complete").write(folder)
    program = "import sys; sys.modules['torch'] = sys.modules['zmq'] = None; "
    program += "from compss_train.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "watch", str(folder)]
    watched = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (watched.returncode, watched.stderr) == (0, "")
