import shutil
import subprocess
import sys

import pytest

from compss_train.cli.arguments import MODULES


def completed(script, *words):
    program = f"{script}\nCOMP_WORDS=(compss-train {' '.join(words)})\nCOMP_CWORD={len(words)}\n"
    program += '_shtab_compss_train\nprintf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_choices_and_files(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spirals.toml").touch()
    (tmp_path / "spirals").mkdir()
    script = command("completion", "bash").out
    assert set(completed(script, "''")) >= set(MODULES)
    assert completed(script, "fit", "--dry") == ["--dry-run"]
    assert completed(script, "fit", "x.toml", "--engine", "se") == ["serial"]
    assert sorted(completed(script, "fit", "spi")) == ["spirals", "spirals.toml"]
    assert completed(script, "fit", "x.toml", "--output", "spi") == ["spirals"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_complete_every_command(command, shell):
    script = command("completion", shell).out
    assert all(command in script for command in MODULES)


def test_completion_requires_its_extra(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "pip install 'compss_train[completion]'" in command("completion", "bash", code=2).err
