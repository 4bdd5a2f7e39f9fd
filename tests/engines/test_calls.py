"""Tests of what every engine does with a task."""

import os
import sys
from types import ModuleType

import pytest
import torch

from compss_train.engines.calls import Failure, select_gpu

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


@pytest.mark.parametrize(
    ("file", "folder"), [("/mine/net.py", "/mine"), ("/mine/net/__init__.py", "/mine")]
)
def test_the_error_of_a_missing_module_names_its_folder_here(monkeypatch, file, folder):
    failure = Failure.of(ModuleNotFoundError("No module named 'net.layers'", name="net.layers"))
    (note,) = failure.exception("Use --path={folder}, {'x': []}").__notes__
    assert note.endswith("Use --path=FOLDER, {'x': []}")
    module = ModuleType("net")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "net", module)
    (note,) = failure.exception("Use --path={folder}").__notes__
    assert note.endswith(f"Use --path={folder}")
    assert f"on the node {failure.node}" in note
