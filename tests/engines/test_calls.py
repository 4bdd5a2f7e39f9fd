"""Tests of what every engine does with a task."""

import os

import pytest
import torch

from compss_train.engines.calls import select_gpu

PART = "MIG-6a6a3d4e-0a3c-5a2e-b0a1-2f3f4c5d6e7f"


@pytest.mark.parametrize(
    ("devices", "count", "seen", "selected"),
    [
        ("2", 4, None, 2),
        ("2,3", 4, None, 2),
        ("2", 1, None, 0),
        (PART, 1, PART, 0),
        (f"{PART},b", 1, PART, 0),
    ],
)
def test_a_task_uses_the_gpu_that_its_runtime_has_bound(
    monkeypatch, devices, count, seen, selected
):
    """By its number CUDA sees all of them, by its name only this one."""
    visible = []
    chosen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices.split(",")[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(visible))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "init", lambda: visible.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for _ in range(2):  # tasks of one process
        select_gpu(devices, "Ray")
    assert (visible, chosen) == ([seen], [selected] * 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == devices
