"""What commands say and check before they import what the file of a run names."""

import os

import numpy as np
import pytest

COMMANDS = {
    "evaluate": [],
    "predict": ["--input", "x.npy", "--output", "y.npy"],
    "export": ["-o", "p.npz"],
}


def test_modules_are_named_before_they_are_imported(fitted, command):
    said = command("evaluate", fitted, "--json").err
    assert "imports tests.cli.user_objects, tests.helpers.models (--trust to hide this)" in said
    assert command("evaluate", fitted, "--trust", "--json").err == ""
    file = fitted / "config.toml"
    file.write_text(file.read_text().replace("tests.helpers.models:mlp", "no_such_module:mlp"))
    assert "imports no_such_module, tests.cli" in command("evaluate", fitted, code=2).err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_another_user_is_an_error_unless_it_is_trusted(fitted, command, monkeypatch, name):
    monkeypatch.setattr(os, "getuid", lambda: os.stat(fitted).st_uid + 1)
    monkeypatch.setattr("compss_train.cli.run_files.objects.ADMINISTRATOR", -1)
    file = fitted / "config.toml"
    file.write_text(file.read_text().replace("tests.helpers.models:mlp", "no_such_module:mlp"))
    np.save("x.npy", np.zeros((4, 5), np.float32))
    arguments = [name, fitted, *COMMANDS[name]]
    error = command(*arguments, code=2).err
    assert "belongs to" in error
    assert "and config.toml imports no_such_module, tests.cli.user_objects" in error
    assert "module no_such_module was not found" not in error
    assert "module no_such_module was not found" in command(*arguments, "--trust", code=2).err
