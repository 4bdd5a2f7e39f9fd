import subprocess
import sys
import warnings

import pytest

from compss_train.cli.arguments import MODULES
from compss_train.cli.main import main


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["doctor", "--help"]])
def test_version_and_help(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["cure"], ["doctor", "--nodes", "a,,b"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: compss-train" in capsys.readouterr().err


def test_every_command_helps(capsys):
    for command in MODULES:
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert f"usage: compss-train {command}" in capsys.readouterr().out


def test_ctrl_c_ends_with_the_code_that_shells_have(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("compss_train.cli.doctor.write", interrupt)
    assert main(["configure", "--units", "1"]) == 130
    assert capsys.readouterr().err == "compss-train configure: interrupted\n"


def test_warnings_are_printed_as_messages_of_the_command(monkeypatch, capsys):
    def warn(*arguments, **options):
        warnings.warn("few units", stacklevel=1)
        raise ValueError("no units")

    monkeypatch.setattr("compss_train.cli.doctor.write", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert main(["configure", "--units", "1"]) == 2
        assert warnings.showwarning is before
    assert capsys.readouterr().err == "compss-train configure: few units\ncompss-train configure: no units\n"


def test_output_that_nobody_reads_is_no_error():
    command = [
        sys.executable,
        "-c",
        "from compss_train.cli.main import main; raise SystemExit(main())",
        "completion",
    ]
    with subprocess.Popen([*command, "bash"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
