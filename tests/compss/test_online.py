"""Training while simulations run, under COMPSs."""

import json
import signal

import pytest

from compss_train.training.checkpoints import read_latest_checkpoint
from tests.compss.conftest import OF_THREE, START
from tests.helpers.waiting import wait_until
from tests.online.simulations import read_count, sample_counts
from tests.online.solvers.compiled import compiled
from tests.online.test_resuming import complete_ones

pytestmark = pytest.mark.timeout(OF_THREE)


def result(run, mode, folder, **options):
    done = run("online.py", mode, folder, folder / "result.json", **options)
    assert done.returncode == 0, done.output
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["engine"] == "compss"
    return outcome


def test_two_workers_on_two_nodes_train_each_sample_once(run, tmp_path):
    outcome = result(run, "two", tmp_path, flags=("--nodes=2", "--units=2"))
    assert set(outcome["counts"]) == {1}
    assert not outcome["warnings"]
    assert outcome["history"][-1]["val_loss"] == pytest.approx(
        -60 / 2
    )  # each worker's share of one half, blocks of 60


def test_a_killed_simulation_and_a_killed_worker_lose_no_sample(run, tmp_path):
    outcome = result(run, "die", tmp_path)
    assert (tmp_path / "simulation").exists()
    assert (tmp_path / "worker").exists()
    assert set(outcome["counts"]) <= {1, 2}
    # Trained and checkpointed long before the worker died.
    assert outcome["counts"][:30] == [1] * 30
    assert any("process died" in text for text in outcome["warnings"])


@pytest.mark.slow  # another application of COMPSs
def test_a_solver_with_two_ranks_of_which_one_is_killed_loses_no_sample(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SOLVER", compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",)))
    outcome = result(run, "solver", tmp_path, flags=("--units=3",))
    assert outcome["counts"] == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0] * 12
    assert (tmp_path / "killed").exists()
    [warned] = outcome["warnings"]
    assert "simulation 0 of input 0 failed: ChildProcessError: mpirun" in warned


def test_a_study_goes_on_in_another_application(run, tmp_path):
    first = result(run, "first", tmp_path)
    assert 0 < sum(first["counts"]) < len(first["counts"])
    outcome = result(run, "resume", tmp_path)
    assert set(outcome["counts"]) == {1}
    assert outcome["history"][-1]["simulations"] == {"running": 0, "done": 12, "failed": 0}


@pytest.mark.slow  # two applications, and a node that COMPSs starts again
def test_the_loss_of_a_node_in_a_resumed_study_loses_no_sample(run, tmp_path):
    """What the save has is neither simulated nor trained again. The last simulation waits for the
    loss.
    """
    flags = ("--nodes=2", "--units=2")
    result(run, "begin", tmp_path, flags=flags)
    before = sample_counts(read_latest_checkpoint(tmp_path / "saves")[1]["parameters"], 2)
    begun = {
        number: read_count(tmp_path / f"begun-{number}")
        for number in complete_ones(tmp_path / "saves")
    }
    assert begun
    assert any(before)
    for path in tmp_path.glob("worker-*"):
        path.unlink()
    outcome = result(run, "lose", tmp_path, flags=flags)
    assert (tmp_path / "lost").exists()
    assert min(outcome["counts"]) >= 1
    assert {now for now, then in zip(outcome["counts"], before, strict=True) if then} == {1}
    assert begun == {number: read_count(tmp_path / f"begun-{number}") for number in begun}
    assert outcome["history"][-1]["simulations"] == {"running": 0, "done": 12, "failed": 0}


def test_ctrl_c_ends_simulations_and_workers(launch, tmp_path):
    application = launch("online.py", "wait", tmp_path, tmp_path / "result.json")
    wait_until((tmp_path / "flag").exists, START)
    application.process.send_signal(signal.SIGINT)
    done = application.wait(100)
    assert done.returncode == 130, done.output
    assert "trained to the end" not in done.output
