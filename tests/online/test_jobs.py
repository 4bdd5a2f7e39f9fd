"""The commands of a queue, and what is wrong with options."""

import dataclasses
import stat
import sys

import numpy as np
import pytest

from compss_train import Jobs, Simulations
from compss_train.exceptions import SimulationError
from compss_train.online import jobs as jobs_module
from compss_train.online.jobs import QueueError, input_text, job_name, number_of

GIVEN = {"submit": "submit", "alive": "alive", "cancel": "cancel {}", "at_most": 2}


def script(folder, name, text):
    """Write a command of the queue; return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def scripts(tmp_path):
    """A queue of scripts: a job is a file of the folder, whose name is its id."""
    return Jobs(
        submit=[
            script(
                tmp_path,
                "submit",
                f'echo "welcome"; echo "$COMPSS_TRAIN_INPUT" >{tmp_path}/$1.job; echo "$1.job;one"',
            ),
            "{}",
        ],
        alive=f"{script(tmp_path, 'alive', f'echo $1 >{tmp_path}/asked; ls {tmp_path}')} {{}}",
        cancel=f"{script(tmp_path, 'cancel', f'rm {tmp_path}/$1')} {{}}",
        find=f"{script(tmp_path, 'find', f'cd {tmp_path}; ls | grep $1.job || true')} {{}}",
        at_most=2,
    )


def test_commands_submit_look_and_cancel(scripts, tmp_path):
    ids = [
        scripts.submit_job(name, {"COMPSS_TRAIN_INPUT": f"[{name!r}]"}) for name in ("one", "two")
    ]
    assert ids == ["one.job", "two.job"]
    assert (tmp_path / "one.job").read_text() == "['one']\n"
    assert scripts.living([*ids, "other"]) == set(ids)
    assert (tmp_path / "asked").read_text() == "one.job,two.job,other\n"
    assert scripts.find_jobs("two") == ["two.job"]
    assert scripts.find_jobs("three") == []
    scripts.cancel_job("one.job")
    assert scripts.living(ids) == {"two.job"}
    with pytest.raises(QueueError, match=r"cancel=.* has ended with status 1: rm: .*one\.job"):
        scripts.cancel_job("one.job")


def test_functions_submit_look_and_cancel():
    cancelled = []
    jobs = Jobs(lambda variables: 12, lambda ids: [12, 13], cancelled.append, at_most=1)
    assert jobs.submit_job("a", {}) == "12"
    assert jobs.living(["12"]) == {"12"}
    jobs.cancel_job("12")
    assert cancelled == ["12"]
    assert jobs.find_jobs("a") == []
    found = Jobs(len, len, len, at_most=1, find=lambda name: [12, name])
    assert found.find_jobs("a") == ["12", "a"]


def test_commands_that_are_missing_or_hang_are_errors_of_the_queue(monkeypatch):
    monkeypatch.setattr(jobs_module, "COMMAND_SECONDS", 0.1)
    jobs = Jobs("no-such-command", [sys.executable, "-c", "input()"], "sleep 1000 {}", at_most=1)
    with pytest.raises(QueueError, match=r"submit='no-such-command' has failed: .*No such file"):
        jobs.submit_job("a", {})
    with pytest.raises(QueueError, match=r"ended with status 1|timed out"):
        jobs.living(["1"])
    with pytest.raises(QueueError, match=r"timed out after 0\.1 seconds"):
        jobs.cancel_job("0")


@pytest.mark.parametrize("output", ["", "Submitted batch job 7", "\n"])
def test_an_output_without_an_id_is_an_error(output):
    jobs = Jobs(lambda variables: output, lambda ids: ids, lambda job_id: None, at_most=1)
    with pytest.raises(SimulationError, match="must be the id of the job alone"):
        jobs.submit_job("a", {})


@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ({"submit": ""}, ValueError, "submit"),
        ({"submit": "'"}, ValueError, "submit"),
        ({"alive": 3}, TypeError, "alive"),
        ({"cancel": "scancel"}, ValueError, "cancel"),
        ({"find": "squeue --me"}, ValueError, "find"),
        ({"find": 3}, TypeError, "find"),
        ({"at_most": 0}, ValueError, "at_most"),
        ({"every": 0}, ValueError, "every"),
    ],
)
def test_wrong_jobs_are_errors(wrong, kind, name, raises):
    with raises(kind, name):
        Jobs(**(GIVEN | wrong))


def test_jobs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Jobs(**GIVEN).at_most = 3


@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ({"jobs": "sbatch"}, TypeError, "jobs"),
        ({"simulate": lambda value: [value]}, ValueError, "simulate"),
        ({"address": None, "token": None}, ValueError, "address"),
        ({"steps": 3}, ValueError, "steps"),
        ({"count": 3}, ValueError, "count"),
        ({"inputs": []}, ValueError, "inputs"),
    ],
)
def test_wrong_simulations_with_jobs_are_errors(wrong, kind, name, raises):
    given = {
        "jobs": Jobs(**GIVEN),
        "inputs": [1],
        "address": "tcp://127.0.0.1:5555",
        "token": "ours alone",
    }
    with raises(kind, name):
        Simulations(**(given | wrong))


def test_data_sets_are_not_written_by_jobs(tmp_path, raises):
    simulations = Simulations(
        jobs=Jobs(**GIVEN), inputs=[1], address="tcp://127.0.0.1:5555", token="ours alone"
    )
    with raises(ValueError, "jobs"):
        simulations.write(tmp_path)


def test_inputs_that_are_no_json_or_too_long_are_errors(raises):
    with raises(ValueError, "input"):
        input_text(object())
    with raises(ValueError, "100001"):
        input_text("a" * 99_999)
    assert (
        input_text({"a": np.arange(2), "b": (np.int64(1), None)}) == '{"a": [0, 1], "b": [1, null]}'
    )


def test_names_have_the_number_and_tell_inputs_apart():
    names = {
        job_name(number, text, address)
        for number in (0, 3, 10**9)
        for text in ("1", "2")
        for address in ("tcp://a:1", "tcp://b:1")
    }
    assert len(names) == 12
    assert {number_of(name) for name in names} == {0, 3, 10**9}
    for other in ("simulation-000003", "a", "", None, 3):
        assert number_of(other) is None
