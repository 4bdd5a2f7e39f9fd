"""Engines by name: what ``auto`` stands for, and what is said where a package is missing."""

import sys

import pytest

from compss_train.engines import LocalEngine, engine_class


def test_auto_is_ray_where_its_address_is_set(monkeypatch):
    assert engine_class("auto") is LocalEngine
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setitem(sys.modules, "ray", sys)  # it is not imported for this
    assert engine_class("auto").name == "ray"


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"engine='ray' needs ray: pip install 'compss_train\[ray\]'"
    ):
        engine_class("ray")
