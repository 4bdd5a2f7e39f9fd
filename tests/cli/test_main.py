import shutil
import subprocess
import sys
import warnings

import pytest

from compss_train.cli import main
from compss_train.cli.arguments import make_parser

(COMMANDS,) = [action.choices for action in make_parser()._actions if action.dest == "command"]


def test_version_help_and_bad_arguments(command):
    assert command("--version").out
    for name in ("", *COMMANDS):
        assert f"usage: compss-train {name}" in command(*name.split(), "--help").out
    for arguments in ([], ["cure"], ["doctor", "--nodes", "a,,b"]):
        assert "usage: compss-train" in command(*arguments, code=2).err


def test_ctrl_c_ends_with_the_code_that_shells_have(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("compss_train.engines.compss.configuration.write", interrupt)
    assert main(["configure", "--units", "1"]) == 130
    assert capsys.readouterr().err == "compss-train configure: interrupted\n"


def test_warnings_are_printed_as_messages_of_the_command(monkeypatch, capsys):
    def warn(*arguments, **options):
        warnings.warn("few units", stacklevel=1)
        raise ValueError("no units")

    monkeypatch.setattr("compss_train.engines.compss.configuration.write", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert main(["configure", "--units", "1"]) == 2
        assert warnings.showwarning is before
    assert capsys.readouterr().err == "compss-train configure: few units\ncompss-train configure: no units\n"


def test_output_that_nobody_reads_is_no_error():
    command = [sys.executable, "-m", "compss_train", "completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


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
    assert set(completed(script, "''")) >= set(COMMANDS)
    assert completed(script, "fit", "--dry") == ["--dry-run"]
    assert completed(script, "fit", "x.toml", "--engine", "se") == ["serial"]
    assert sorted(completed(script, "fit", "spi")) == ["spirals", "spirals.toml"]
    assert completed(script, "fit", "x.toml", "--output", "spi") == ["spirals"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_complete_every_command(command, shell):
    script = command("completion", shell).out
    assert all(command in script for command in COMMANDS)
