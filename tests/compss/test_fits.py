"""Fits under COMPSs: their bits, their tasks, and the nodes and resources that these get."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.apps.conftest import images  # noqa: F401  (a fixture)
from tests.compss.conftest import OF_THREE
from tests.helpers.processes import ROOT

pytestmark = pytest.mark.timeout(OF_THREE)

TASK = re.compile(r'^\d+\[shape=circle, style=filled fillcolor="(#\w+)"', re.MULTILINE)
LEGEND = re.compile(r'compss_train\.engines\.compss\.tasks\.(\w+)\.cu1</td>\s*<td bgcolor="(#\w+)"')


def tasks(done):
    """Count the tasks of each name in the graph."""
    graph = (done.log / "monitor" / "complete_graph.dot").read_text()
    names = {colour: name for name, colour in LEGEND.findall(graph)}
    return Counter(names[colour] for colour in TASK.findall(graph))


def fitted(run, tmp_path, *options):
    result = tmp_path / "result.json"
    done = run("fit.py", result, *options, flags=("--graph",))
    assert done.returncode == 0, done.output
    return json.loads(result.read_text()), done


def test_a_fit_has_a_training_task_per_chunk_and_epoch(run, tmp_path):
    result, done = fitted(
        run, tmp_path, "workers=20", "blocks=20", "samples=100", "num_epochs=2", "hidden=4096"
    )
    # Workers that take less time than a task costs are two chunks on two units, whose results one
    # task averages.
    assert tasks(done) == {"map_chunk": 2 * 2, "merge_part": 2, "evaluate": 2}
    large = [size for size in result["fetched"] if size > 10_000]
    assert len(large) == 1
    assert result["bytes"] < large[0] < result["bytes"] + 2000
    assert len(result["fetched"]) == 2 * 2 + 1 + 2  # reports of tasks, parameters, evaluations


def test_each_kind_of_task_has_its_name(run, tmp_path):
    options = (
        "workers=3",
        "blocks=4",
        "num_epochs=2",
        "merge=commutative",
        "quorum=0",
        "shuffles=total",
    )
    _, done = fitted(run, tmp_path, *options)
    assert tasks(done) == {
        "map_chunk": 6,
        "commute": 6,
        "split_rows": 8,
        "copy_value": 1,
        "evaluate": 2,
    }


def accuracy(done):
    assert done.returncode == 0, done.output
    return float(re.search(r"test accuracy ([\d.]+)%", done.output)[1])


def test_digits_trains_by_commutative_workers(run):
    done = run(
        ROOT / "apps" / "digits.py", "--workers", 2, "--epochs", 10, "--merge", "commutative"
    )
    assert accuracy(done) > 90


@pytest.mark.usefixtures("images")
def test_fashion_mnist_trains_on_images(run, tmp_path):
    done = run(
        ROOT / "apps" / "fashion_mnist.py",
        "--epochs",
        2,
        "--batch-size",
        20,
        "--data",
        tmp_path / "images",
    )
    assert accuracy(done) > 90


def test_all_fits_train_on_blocks_that_are_futures(run, tmp_path):
    done = run("futures.py", tmp_path / "result.json")
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["known"] == {"shape": [4, 1], "sizes": [50] * 4, "dtype": "float32"}
    assert max(result["read by from_dislib"]) < 1000  # no block was transferred to get its shape
    for fit, difference in result["differences"].items():
        # Commutative updates are added in the order of arrival, which varies.
        assert difference == 0 if "_asynchronous" not in fit else difference < 0.1, fit
    assert result["collected"]


INSIDE = Path(__file__).parent / "inside"
OPTIONS = ("workers=4", "blocks=8", "num_epochs=3", "hidden=100000", "shuffles=blocks,total")
"""Two fits of 5 MB of parameters, which two nodes merge in two parts."""


def used_nodes(done):
    """Return the nodes on which jobs ended, from COMPSs's log."""
    ended = re.findall(
        r"JOB_RESULT.*?file:///\S*/(127\.0\.0\.\d)/", (done.log / "runtime.log").read_text()
    )
    return set(ended)


def test_two_nodes_train_to_the_same_bits_as_one_process(run, tmp_path):
    done = run(
        "fit.py",
        tmp_path / "ours.json",
        *OPTIONS,
        flags=("--nodes=2", "--units=1", "--log_level=debug", "--graph"),
    )
    assert done.returncode == 0, done.output
    assert tasks(done)["merge_part"] == 2 * 3 * 2
    plain = [
        sys.executable,
        str(INSIDE / "fit.py"),
        str(tmp_path / "theirs.json"),
        *OPTIONS,
        "engine=serial",
    ]
    subprocess.run(plain, check=True, timeout=60)
    ours, theirs = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ours", "theirs")
    )
    assert ours["digest"] == theirs["digest"]
    assert ours["losses"] == theirs["losses"]
    assert used_nodes(done) == {"127.0.0.1", "127.0.0.2"}


def test_declared_gpus_are_bound_and_more_are_an_error(run, tmp_path):
    done = run("gpus.py", tmp_path / "result.json", flags=("--gpus=4",))
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    expected = (
        r"[0-3]" if torch.cuda.is_available() else r"COMPSs bound GPU [0-3] of \S+ to this task.*"
    )
    assert len(result["gpus"]) == 3
    assert all(re.fullmatch(expected, text) for text in result["gpus"])
    assert "the compss engine has 4 GPUs" in result["too many GPUs"]
    assert result["too many units"].startswith(
        "a task needs 99 CPUs, the largest node has 2; use fewer threads"
    )


def test_more_units_than_cores_run_as_many_tasks(run, tmp_path):
    """COMPSs binds units to cores by itself, and tasks beyond the cores die: the error says so."""
    units = (os.cpu_count() or 1) + 3
    (folder := tmp_path / "meeting").mkdir()
    done = run("crowded.py", folder, units, flags=(f"--units={units}",))
    assert done.returncode == 0, done.output
    assert f"met {[units] * units}" in done.output
    done = run("crowded.py", folder, units, flags=(f"--units={units}", "--cpu_affinity=automatic"))
    assert done.returncode == 1, done.output
    assert re.search(r"WorkerLostError: .* its worker process on .* died", done.output)


# All of tests/trainer/test_trainer.py and of tests/training/schedules pass, too, in many minutes.
SUITES = {
    "engines/test_conformance.py": (),
    "engines/test_neighbours.py": (
        "test_a_fit_that_fails_leaves_the_engine_to_its_caller",
        "test_what_cannot_be_cancelled_has_run_when_a_scope_that_fails_ends",
        "test_compss_serves_the_thread_that_made_the_engine",
    ),
    "trainer/test_trainer.py": (
        "test_every_engine_gives_the_same_bits_in_every_synchronous_mode",
        "test_fits_learn_on_every_engine_however_workers_merge",
        "test_two_fits_are_one_of_all_their_epochs",
        "test_evaluate_and_predict_agree_with_the_model",
        "test_validation_is_the_evaluation_after_each_round",
        "test_callbacks_see_the_parameters_of_their_round",
    ),
}
MERGES = {
    "training/schedules/test_all_kinds.py": ("test_one_merge_at_the_end_is_the_mean_by_samples",),
    "training/test_resuming.py": ("test_on_every_engine",),
    "training/schedules/test_server.py": ("test_one_worker_is_the_plain_loop",),
}
DATA = {
    "trainer/test_dataset_fits.py": (
        "test_samples_by_number_are_arrays",
        "test_data_sets_are_evaluated_and_predicted_with",
        "test_a_stream_is_sharded_by_worker",
        "test_data_sets_of_hugging_face_are_arrays",
    ),
    "worker/test_batches.py": (
        "test_a_queue_gives_every_engine_the_same_bits",
        "test_a_reservoir_trains_every_sample_at_least_once",
    ),
    "trainer/test_file_fit.py": (
        "test_files_are_blocks_in_memory",
        "test_relative_paths_are_found_by_all_processes",
        "test_a_corrupt_file_is_an_error_or_left_out",
    ),
}


@pytest.mark.parametrize(
    ("suites", "least"), [(SUITES, 45), (MERGES, 9), (DATA, 30)], ids=["fits", "merges", "data"]
)
def test_the_tests_for_every_engine_pass(run, suites, least):
    tests = [
        f"{ROOT}/tests/{file}{'::' * bool(name)}{name}"
        for file in suites
        for name in suites[file] or [""]
    ]
    done = run("run_tests.py", *tests, seconds=1200)
    assert done.returncode == 0, done.output
    assert int(re.findall(r"(\d+) passed", done.output)[-1]) > least


@pytest.mark.parametrize(("file", "names"), {**SUITES, **MERGES, **DATA}.items())
def test_the_tests_that_are_run_inside_exist(file, names):
    assert set(names) <= set(
        re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    )


THEIRS = "from dislib.pytorch.encapsulated_functions_distributed import"
OURS = "from compss_train.integrations.dislib import"


def test_dislibs_own_tests_pass(run, tmp_path, monkeypatch):
    if (checkout := os.environ.get("DISLIB_CHECKOUT")) is None:
        pytest.skip("needs a checkout of dislib; set DISLIB_CHECKOUT to its path")
    source = Path(checkout, "tests", "test_distributed_pytorch.py").read_text()
    assert source.count(THEIRS) == 1
    changed = tmp_path / "test_distributed_pytorch.py"
    changed.write_text(source.replace(THEIRS, OURS))
    monkeypatch.setenv("ComputingUnits", "1")
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    done = run(changed, flags=(f"--pythonpath={checkout}",))
    assert done.returncode == 0, done.output
    assert "Ran 10 tests" in done.output
