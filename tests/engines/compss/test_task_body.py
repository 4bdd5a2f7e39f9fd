"""Bodies of COMPSs's tasks, and the threads, cores and GPU that they are bound to."""

import inspect
import os
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import compss_train
from compss_train.engines.calls import Failure
from compss_train.engines.compss import task_body
from compss_train.engines.compss.task_body import Placeholder, SerializedValue, bound_resources, run_task
from compss_train.worker.train import train_group
from tests.engines import tasks
from tests.training.checkpoints.trees import assert_same


def call(function, *args):
    return SerializedValue.of(task_body.Call(function, args, gpu=False))


def test_inputs_replace_the_placeholders():
    of_another_library = np.array([100])
    inputs = [SerializedValue.of(1), SerializedValue.of(10), of_another_library]
    assert run_task(1, 1, call(tasks.add, Placeholder(2), 1000, Placeholder(0)), inputs).load() == [1101]
    assert run_task(1, 1, call(tasks.total, [Placeholder(0), Placeholder(1)]), inputs).load() == 11


def test_several_results_are_serialized_each():
    head, tail, text = run_task(3, 1, call(tasks.split, Placeholder(0)), [SerializedValue.of(np.arange(4))])
    assert (head.load().tolist(), tail.load().tolist(), text.load()) == ([0], [1, 2, 3], "text")


def test_an_exception_is_each_result():
    results = run_task(3, 1, call(tasks.fail, "broken"), [])
    assert len(results) == 3
    for result in results:
        error = result.load().exception()
        assert isinstance(error, KeyError)
        assert "in fail" in str(error.__cause__)


def test_a_failure_passes_on_untouched():
    failed = run_task(1, 1, call(tasks.fail, "at first"), [])
    later = run_task(2, 1, call(tasks.split, Placeholder(0)), [failed])
    assert [result.load() for result in later] == [failed.load()] * 2


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_nothing_leaves_a_task(kind):
    def leave():
        raise kind("out")

    assert isinstance(run_task(1, 1, call(leave), []).load(), Failure)


def test_arguments_and_results_that_cannot_be_serialized_are_failures():
    unloadable = run_task(1, 1, call(tasks.add, tasks.Unloadable()), [])
    assert isinstance(unloadable.load().exception(), ImportError)
    unpackable = run_task(2, 1, call(tasks.good_and_bad), [])
    assert all(isinstance(result.load(), Failure) for result in unpackable)


def test_a_task_that_compss_lost_is_an_error():
    with pytest.raises(task_body.LostInputError):
        raise run_task(1, 1, call(tasks.add, Placeholder(0)), [None]).load().exception()


def test_an_update_replaces_the_target_and_returns_it():
    target = SerializedValue.of(1)
    made = task_body.run_update(
        1, call(tasks.plus, Placeholder(0), Placeholder(1)), target, [SerializedValue.of(5)]
    )
    assert made.load() == target.load() == 6
    task_body.run_update(
        1, call(tasks.plus, Placeholder(0), Placeholder(1)), target, [run_task(1, 1, call(tasks.fail, "no"), [])]
    )
    assert isinstance(target.load(), Failure)


def test_a_value_comes_back_from_its_pickle():
    value = {"array": np.arange(6.0).reshape(2, 3), "tensor": torch.arange(4), "text": ["a", None]}
    back = pickle.loads(pickle.dumps(SerializedValue.of(value), protocol=5)).load()
    assert_same(back, value)
    assert back["array"].flags.writeable  # torch would copy it otherwise


def test_packing_neither_copies_arrays_nor_pickles_them():
    array = np.zeros(100_000)
    serialized = SerializedValue.of([array])
    assert len(serialized.data) < 1000
    array[7] = 3
    assert serialized.load()[0][7] == 3


def test_tasks_are_named_by_functions_of_the_package():
    package = Path(inspect.getfile(compss_train)).parent
    sources = "\n".join(path.read_text() for path in package.rglob("*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    assert set(task_body.TASK_NAMES) <= defined
    assert task_body.task_name(train_group) == "train"
    assert task_body.task_name(tasks.total) == "run"


def test_all_threads_move_to_the_cores_that_were_bound(monkeypatch):
    before = os.sched_getaffinity(0)
    stop, helper = threading.Event(), []
    thread = threading.Thread(target=lambda: (helper.append(threading.get_native_id()), stop.wait(30)))
    thread.start()
    core = min(before)
    monkeypatch.setenv("COMPSS_BINDED_CPUS", str(core))
    try:
        with bound_resources(2, gpu=False):
            assert os.sched_getaffinity(helper[0]) == {core}
    finally:
        stop.set()
        thread.join()
        monkeypatch.setenv("COMPSS_BINDED_CPUS", ",".join(map(str, before)))
        with bound_resources(2, gpu=False):
            pass
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("visible", "taken"), [(4, [3, 1]), (3, [2, 1]), (1, [0, 0])])
def test_processes_see_all_gpus_and_take_the_bound_one(monkeypatch, visible, taken):
    """Where CUDA was initialized before with fewer devices, the last one."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(seen))
    monkeypatch.setattr(torch.cuda, "init", lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    for gpu in ("3", "1,2"):  # two tasks of one process
        monkeypatch.setenv("COMPSS_BINDED_GPUS", gpu)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        with bound_resources(1, gpu=True):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu  # which COMPSs deletes after the task
    assert seen == [None, *taken]


def test_a_node_whose_torch_sees_no_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("COMPSS_BINDED_GPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with (
        pytest.raises(RuntimeError, match=r"bound GPU 2 of .* but torch sees no GPU there.*num_gpu=0"),
        bound_resources(1, gpu=True),
    ):
        pass
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"  # PyCOMPSs deletes it after the task


def test_without_the_runtime_the_users_choice_of_gpus_stands(monkeypatch):
    monkeypatch.delenv("COMPSS_BINDED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with bound_resources(1, gpu=True):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("cpus", [1, 2])
def test_threads_are_as_before_afterwards(cpus):
    before = torch.get_num_threads()
    with bound_resources(cpus, gpu=False):
        assert torch.get_num_threads() == cpus
    assert torch.get_num_threads() == before
