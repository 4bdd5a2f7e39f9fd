import os
from types import SimpleNamespace

import pytest

from compss_train.cli.doctor import compss_files as resources
from compss_train.cli.doctor import installation
from compss_train.engines.compss.configuration import nodes as home
from tests.cli.doctor.machine import Machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPSS_HOME", str(made.home))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(home, "DEFAULT_HOME", tmp_path / "none")
    monkeypatch.setattr(installation, "util", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(resources, "physical_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return made
