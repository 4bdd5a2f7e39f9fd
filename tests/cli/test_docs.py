"""The example in docs/command-line.md."""

import re
import shlex
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parents[2] / "docs" / "command-line.md"


def block(text, language):
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def test_the_example_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")
    example = DOCS.read_text().partition("## An example")[2].partition("## The file")[0]
    Path("models.py").write_text(block(example, "python"))
    Path("digits.toml").write_text(block(example, "toml"))
    np.save("new.npy", np.zeros((5, 64), np.float32))
    monkeypatch.delitem(__import__("sys").modules, "models", raising=False)
    lines = [shlex.split(line, comments=True) for line in block(example, "sh").splitlines()]
    for name, *arguments in lines:
        assert name == "compss-train"
        command(*arguments)
    assert np.load("classes.npy").shape == (5,)
    assert '"accuracy": 0.9' in command("evaluate", "runs/digits", "--json").out
    assert Path("runs/wide/config.toml").exists()
