import pytest
import torch

from compss_train import LocalEngine, SerialEngine
from compss_train.engines.calls import intra_op_threads
from compss_train.engines.nodes import cores


@pytest.mark.parametrize("machine", [SerialEngine, LocalEngine])
def test_workers_are_spread_round_robin_over_the_gpus(machine):
    assert [machine.device(worker, 2) for worker in range(5)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert {machine.device(worker, 0) for worker in range(5)} == {"cpu"}


@pytest.mark.parametrize("machine", [SerialEngine, LocalEngine])
def test_gpus_are_checked_against_what_torch_sees(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for enough in (0, 1, 2):
        machine.check_gpus(enough, 1)
    with pytest.raises(ValueError, match="num_gpu=3, but torch sees 2 GPUs on this machine; use num_gpu=2"):
        machine.check_gpus(3, 1)


def test_threads_are_shared_and_at_least_one(monkeypatch):
    monkeypatch.setattr("compss_train.engines.nodes.cpu_count", lambda: 8)
    assert [SerialEngine.thread_share(workers) for workers in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    assert cores() == 8


def test_threads_are_restored():
    before = torch.get_num_threads()

    def fail():
        with intra_op_threads(before + 1):
            raise KeyError(torch.get_num_threads())

    with pytest.raises(KeyError, match=str(before + 1)):
        fail()
    assert torch.get_num_threads() == before
