import os
import threading

import pytest
import torch

from compss_train.engines.compss.task_body import bound_resources


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
