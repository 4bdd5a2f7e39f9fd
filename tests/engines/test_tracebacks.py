"""Exceptions of tasks name the user's file, line and source, the user's line last."""

import linecache
import subprocess
import sys
import textwrap

import pytest
import torch

from compss_train import BufferSpec, Simulations
from compss_train._utils.validation import check_count
from compss_train.engines.calls import MOST_FRAMES, task_traceback
from compss_train.exceptions import SimulationError, WorkerTraceback
from tests.helpers.models import classification, mlp
from tests.helpers.small_fits import PLAIN_SGD, trainer_of

SCRIPT = textwrap.dedent(
    """
    import numpy as np
    import torch
    from torch import nn

    from compss_train import DistributedTrainer


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(20, 2)

        def forward(self, x):
            return self.layer(x[:, :19])  # the mistake


    def step(model, batch, context):
        x, y = batch
        return {"loss": nn.functional.cross_entropy(model(x), y)}  # the step


    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(Net(), {"optimizer": "sgd", "lr": 0.1}, training_step=step)
    x, y = np.zeros((40, 20), np.float32), np.zeros(40, np.int64)
    trainer.fit(x, y, num_epochs=1, batch_size=10, progress=False)  # the fit
    """
)


def test_a_mistake_in_a_script_is_named_with_file_line_and_source(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    lines = done.stderr.rstrip().splitlines()
    sources = SCRIPT.splitlines()
    for mark, name in (("the mistake", "forward"), ("the step", "step"), ("the fit", "<module>")):
        (number,) = [number for number, line in enumerate(sources, 1) if line.endswith(f"# {mark}")]
        at = lines.index(f'  File "{script}", line {number}, in {name}')
        assert lines[at + 1].strip() == sources[number - 1].strip()
    shown = [line for line in lines if line.startswith("  File ")]
    of_task = shown[: next(n for n, line in enumerate(shown) if "in <module>" in line)]
    assert of_task[-1] == f'  File "{script}", line 15, in forward'
    assert not any("torch/nn/modules/linear.py" in line for line in lines)
    assert len(lines) <= 25, done.stderr


def of_a_cell(monkeypatch, text, name):
    """Return a function of a notebook, whose source only this process has."""
    monkeypatch.setitem(
        linecache.cache, "cell-7", (len(text), None, text.splitlines(keepends=True), "cell-7")
    )
    exec(compile(text, "cell-7", "exec"), namespace := {"__name__": "__main__"})
    return namespace[name]


@pytest.mark.usefixtures("forked_processes")
def test_a_mistake_in_a_notebook_is_named_with_its_source(monkeypatch):
    transform = of_a_cell(monkeypatch, "def transform(x):\n    return x.nothing\n", "transform")
    trainer = trainer_of("local", 2, net=mlp, optimizer=PLAIN_SGD, transform=transform)
    with pytest.raises(AttributeError) as caught:
        trainer.fit(*classification(samples=40), num_epochs=1, batch_size=10, progress=False)
    assert '  File "cell-7", line 2, in transform\n    return x.nothing\n' in str(
        caught.value.__cause__
    )


@pytest.mark.usefixtures("forked_processes")
def test_a_mistake_in_a_simulation_is_named_with_its_source(monkeypatch):
    simulate = of_a_cell(monkeypatch, "def simulate(value):\n    yield value.nothing\n", "simulate")
    trainer = trainer_of("local", 1, net=mlp, optimizer=PLAIN_SGD)
    simulations = Simulations(simulate, [1], retries=0)
    with (
        pytest.warns(UserWarning, match=r"yield value\.nothing\n"),
        pytest.raises(SimulationError) as caught,
    ):
        trainer.fit_online(simulations, buffer=BufferSpec("FIFO", 20), batch_size=5, progress=False)
    assert '  File "cell-7", line 2, in simulate\n    yield value.nothing\n' in str(
        caught.value.__cause__
    )


def deep(levels):
    return deep2(levels - 1) if levels else 1 / 0


def deep2(levels):
    return deep(levels - 1) if levels else 1 / 0


def test_of_many_frames_the_first_and_the_last_are_shown():
    with pytest.raises(ZeroDivisionError) as caught:
        deep(20)
    error = caught.value
    text = task_traceback(error)
    assert text.count("  File ") == MOST_FRAMES
    assert (
        text.index("in test_of_many_frames")
        < text.index("[frames left out: 18]")
        < text.index("in deep2")
    )
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert str(WorkerTraceback(text)) == f"\n{text.rstrip()}"


def test_the_last_frame_of_a_mistake_in_torch_is_the_users():
    with pytest.raises(RuntimeError) as caught:
        mlp()(torch.zeros(2, 5))
    lines = task_traceback(caught.value).splitlines()
    *_, last = (number for number, line in enumerate(lines) if line.startswith("  File "))
    assert "in test_the_last_frame_of_a_mistake_in_torch_is_the_users" in lines[last]
    assert len(lines) <= 15


def test_where_no_frame_is_the_users_the_last_one_is_shown():
    error = None
    try:
        torch.zeros(2) @ torch.zeros(3)
    except RuntimeError as caught:
        error = caught.with_traceback(None)
    assert "RuntimeError" in task_traceback(error)
    with pytest.raises(ValueError, match="num_epochs") as failed:
        check_count("num_epochs", 0)
    inner = failed.value
    inner.__traceback__ = inner.__traceback__.tb_next  # without this test's frame
    assert "in check_count" in task_traceback(inner) or "in _number" in task_traceback(inner)
