"""What ends a run or disturbs it: errors, lost processes, Ctrl-C, kills, and many tasks."""

import json
import re
import signal
from statistics import median

import pytest

from compss_train.model import parameters
from compss_train.training.checkpoints import list_checkpoints
from tests.compss.conftest import OF_THREE, START
from tests.compss.inside.resumed import fit
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT
from tests.helpers.waiting import wait_until
from tests.soak.fits import disturb_fit

pytestmark = pytest.mark.timeout(OF_THREE)


def test_a_tasks_exception_reaches_the_user_with_its_traceback(run, tmp_path):
    done = run("faulty.py", "raise", tmp_path / "flag")
    assert done.returncode == 1, done.output
    assert "in forward" in done.output
    assert re.search(r"^RuntimeError: the network is broken here", done.output, re.MULTILINE)
    assert "trained to the end" not in done.output


def test_a_worker_process_that_dies_ends_the_run(run, tmp_path):
    done = run("faulty.py", "die", tmp_path / "flag")
    assert done.returncode == 1, done.output
    assert re.search(r"COMPSs lost a task: its worker process on .* died", done.output)
    assert "trained to the end" not in done.output


def test_a_node_that_dies_is_named(run, tmp_path):
    flags = ("--nodes=2", "--units=1")
    done = run("faulty.py", "node", tmp_path / "flag", flags=flags)
    assert done.returncode == 1, done.output
    assert re.search(r"WorkerLostError: .* node 127\.0\.0\.[12] no longer answers", done.output)
    assert "trained to the end" not in done.output


def test_with_a_timeout_workers_that_stop_or_die_are_replaced(run, tmp_path):
    ends = []
    for how in ("never", "stop", "kill"):
        done = run("faulty.py", how, tmp_path / how)
        assert done.returncode == 0, done.output
        assert (tmp_path / how).exists() == (how != "never")
        ends.append(re.search(r"^trained to the end (\w+)$", done.output, re.MULTILINE)[1])
    assert len(set(ends)) == 1


def test_ctrl_c_ends_the_application(launch, tmp_path):
    application = launch("faulty.py", "wait", tmp_path / "flag")
    wait_until((tmp_path / "flag").exists, START)
    application.process.send_signal(signal.SIGINT)
    done = application.wait(100)
    assert done.returncode == 130, done.output
    assert "trained to the end" not in done.output


def test_an_application_that_compss_aborts_ends(run):
    done = run("aborted.py")
    assert done.returncode not in (0, None), done.output


def sizes(run, tmp_path, workers, rounds):
    done = run("growth.py", tmp_path / "sizes.json", workers, rounds)
    assert done.returncode == 0, done.output
    measured = json.loads((tmp_path / "sizes.json").read_text())
    assert len(measured) == rounds
    return measured


def check(measured, slack):
    """Compare medians of early and late rounds, since the values vary."""

    def typical(name, rounds):
        return median(entry[name] for entry in rounds)

    early = measured[4:12]
    late = measured[-9:-1]
    rounds = len(measured) - 9 - 4
    # Objects that PyCOMPSs keeps here.
    assert abs(typical("tracked", late) - typical("tracked", early)) <= 3
    assert abs(typical("files here", late) - typical("files here", early)) <= 3
    # COMPSs keeps values that the coordinator has read: the reports of two tasks a round. A value
    # of another kind would make it three.
    growth = typical("values on workers", late) - typical("values on workers", early)
    assert growth <= 2 * rounds + slack


def test_nothing_is_left_behind(run, tmp_path):
    check(sizes(run, tmp_path, 16, 30), slack=12)


def test_killed_and_terminated_fits_resume_bit_for_bit(run, tmp_path):
    killed = run("resumed.py", tmp_path, 2, signal.SIGKILL.value)
    assert killed.returncode != 0, killed.output
    # The signal comes before the checkpoint of its round.
    assert max(list_checkpoints(tmp_path / "checkpoints")) == 1
    terminated = run("resumed.py", tmp_path, 4, signal.SIGTERM.value)
    assert terminated.returncode != 0, terminated.output
    assert "fit interrupted by SIGTERM" in terminated.output
    assert max(list_checkpoints(tmp_path / "checkpoints")) == 4
    finished = run("resumed.py", tmp_path)
    assert finished.returncode == 0, finished.output
    assert "round-000004 on compss" in finished.output
    assert_same_bits(
        parameters.load(tmp_path / "trained.npz"), fit(tmp_path / "apart", "serial", [])[0]
    )


def test_a_script_without_a_guard_trains_once(run, tmp_path):
    done = run("unguarded.py", tmp_path / "notes", flags=(f"--pythonpath={ROOT}",))
    assert done.returncode == 0, done.output
    assert (tmp_path / "notes").read_text().split() == ["script", "script", "fit", "end"]
    assert "Traceback" not in done.output


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_disturbed_fit_on_two_nodes_ends_with_the_bits(launch, soak_folder, soak_minutes):
    def start(epochs):
        program = ROOT / "tests/soak/fit_program.py"
        return launch(program, soak_folder, epochs, flags=("--nodes=2", "--units=1")).process

    disturb_fit(soak_folder, start, min(10.0, soak_minutes), megabytes=64)
