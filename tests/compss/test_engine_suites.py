"""Tests of every engine, run inside an application of COMPSs."""

import re

import pytest

from tests.helpers.documents import ROOT

# All of tests/trainer/test_trainer.py and of tests/training/merging pass, too, in many minutes.
SUITES = {
    "engines/test_conformance.py": (),
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
    "training/merging/test_all_kinds.py": ("test_one_merge_at_the_end_is_the_mean_by_samples",),
    "training/test_resuming.py": ("test_on_every_engine",),
    "training/merging/test_server.py": ("test_one_worker_is_the_plain_loop",),
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
    ),
    "trainer/test_file_fit_bad_files.py": ("test_a_corrupt_file_is_an_error_or_left_out_and_told",),
}


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    ("suites", "least"), [(SUITES, 45), (MERGES, 20), (DATA, 30)], ids=["fits", "merges", "data"]
)
def test_the_tests_for_every_engine_pass(run, suites, least):
    tests = [f"{ROOT}/tests/{file}{'::' * bool(name)}{name}" for file in suites for name in suites[file] or [""]]
    done = run("run_tests.py", *tests, seconds=300)
    assert done.returncode == 0, done.output
    assert int(re.findall(r"(\d+) passed", done.output)[-1]) > least


@pytest.mark.parametrize(("file", "names"), {**SUITES, **MERGES, **DATA}.items())
def test_the_tests_that_are_run_inside_exist(file, names):
    assert set(names) <= set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE))
