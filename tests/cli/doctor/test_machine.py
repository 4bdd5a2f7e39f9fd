from importlib import metadata

from compss_train.cli.doctor.machine import judge_open_files
from tests.cli.doctor.machine import found


def test_packages_that_are_not_installed(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    findings = found()
    assert [findings[name].advice for name in ("torch", "numpy")] == ["pip install torch", "pip install numpy"]


def test_folder_that_cannot_be_written(machine, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/1")
    finding = found()["~/.COMPSs"]
    assert finding.state == "missing"
    assert "not writable" in finding.found


def test_open_files():
    assert [judge_open_files("files", limit).state for limit in (256, 1024, -1)] == ["warning", "ok", "ok"]
