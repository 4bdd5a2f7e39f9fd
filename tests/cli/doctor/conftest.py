import os
from types import SimpleNamespace

import pytest

from compss_train.cli import doctor
from compss_train.cli.doctor import nodes
from compss_train.engines.compss import configuration
from tests.cli.doctor.fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    fake = FakeMachine(tmp_path)
    monkeypatch.setenv("PATH", str(fake.bin))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPSS_HOME", str(fake.home))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(configuration, "DEFAULT_HOME", tmp_path / "none")
    monkeypatch.setattr(doctor, "util", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(nodes, "physical_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return fake
