import subprocess
import sys
import warnings

import shtab

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
    command = [sys.executable, "-m", "compss_train", "fit", "--example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_shells_complete_commands_and_options():
    script = shtab.complete(make_parser(), shell="bash")
    assert all(name in script for name in (*COMMANDS, "--dry-run"))
