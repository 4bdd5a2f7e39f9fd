"""Run files, objects that they name, and the arguments that sections give to functions."""

import functools
import math
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train.cli.run_files import RunFile, RunFileError, apply_settings, read_toml
from compss_train.cli.run_files.objects import keywords_of, resolve
from compss_train.cli.run_files.training import FIT


def test_strings_name_objects_and_tables_call_them():
    assert resolve("import:math:pi") == math.pi
    assert resolve("import:torch:Tensor.float") is torch.Tensor.float
    layer = resolve(
        {"import": "torch.nn:Linear", "in_features": 3, "out_features": 2, "bias": False}
    )
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.bias) == (3, None)
    linear = resolve({"partial": "torch.nn:Linear", "in_features": 3})
    assert isinstance(linear, functools.partial)
    assert linear(out_features=4).out_features == 4


def test_objects_are_resolved_at_any_depth_with_arguments():
    value = {"a": [1, {"b": "import:math:pi"}], "c": "import", "d": {"import": "builtins:list"}}
    assert resolve(value) == {"a": [1, {"b": math.pi}], "c": "import", "d": []}
    net = resolve({"import": "torch.nn:Sequential", "arguments": [{"import": "torch.nn:ReLU"}]})
    assert isinstance(net[0], nn.ReLU)

    assert resolve({"import": "builtins:divmod", "arguments": [7, 2]}) == (3, 1)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("import:math", 'names no object: write "module:name"'),
        ({"import": 3}, "names no object"),
        ("import:torch.nn:Linar", "torch.nn has no Linar"),
        (
            "import:nowhere.at.all:x",
            ("No module named 'nowhere'; install it, or put its file next to"),
        ),
        ({"import": "math:pi"}, 'cannot be called; for the object itself write "import:math:pi"'),
        (
            {"import": "torch.nn:Linear", "in_feature": 1},
            ("unexpected keyword argument 'in_feature'"),
        ),
        ({"import": "torch.nn:Linear", "partial": "a:b"}, "not both"),
        ({"import": "builtins:dict", "arguments": 3}, "arguments = 3"),
        (
            {"import": "torch.nn:Linear", "in_features": -1, "out_features": 1},
            ("calling torch.nn:Linear failed"),
        ),
        ({"import": "builtins:dict", "a": {"import": "math:po"}}, "math has no po"),
    ],
)
def test_invalid_objects_are_an_error(value, name, raises):
    with raises(ValueError, name):
        resolve({"key": [value]})


def test_modules_that_fail_to_import_are_an_error(tmp_path, monkeypatch, raises):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "objects_that_fail.py").write_text("import objects_that_are_not_there\n")
    (tmp_path / "objects_that_raise.py").write_text("1 / 0\n")
    for name, kind in (("fail", "ModuleNotFoundError"), ("raise", "ZeroDivisionError")):
        with raises(ValueError, kind):
            resolve(f"import:objects_that_{name}:x")
        assert f"objects_that_{name}" not in sys.modules


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ({"num_epoch": 3}, "unknown key num_epoch"),
        ({"zzz": 3}, "unknown key zzz"),
        ({"self": 3}, "unknown key self"),
        ({}, "num_epochs is missing; compss-train fit --keys says what it takes"),
        ({"num_epochs": 3, "merge": {"evry": 2}}, "merge: unknown key evry"),
        ({"num_epochs": 3, "merge": {"every": -1}}, "merge: every=-1"),
        ({"num_epochs": 3, "buffer": {"kind": "FIFO"}}, "buffer: capacity is missing"),
        (
            {"num_epochs": "import:operator:negg"},
            ("num_epochs: 'operator:negg': operator has no negg"),
        ),
    ],
)
def test_wrong_keys_are_an_error(table, name, raises):
    with raises(ValueError, name):
        keywords_of(table, FIT)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
plain = st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False), st.datetimes())
values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=4
)


@given(st.dictionaries(texts, st.dictionaries(texts, values) | values))
def test_a_dumped_file_has_all_values_seed_and_places(table):
    output = {"folder": "runs", "csv": True}
    home = Path("/home/me")
    run_file = RunFile(home / "runs/run.toml", home, {**table, "output": output})
    seeded = {**run_file.section("trainer"), "seed": 3}
    places = {"home": "/home/me", "source": "runs/run.toml"}
    expected = {**table, "trainer": seeded, "output": {"csv": True}, **places}
    assert tomllib.loads(run_file.dumps(3)) == expected


def test_wrong_settings_and_unreadable_files_are_errors(tmp_path):
    for setting in ("fit.a", "a=1", "=1", ".a=1", "fit.=1", "fit..a=1"):
        with pytest.raises(RunFileError, match=r"give SECTION.KEY=VALUE"):
            apply_settings({}, [setting])
    with pytest.raises(RunFileError, match="seed is 3 in the file, not a table"):
        apply_settings({"trainer": {"seed": 3}}, ["trainer.seed.a=1"])
    with pytest.raises(RunFileError, match=r"cannot read .*none.toml: No such file"):
        read_toml(tmp_path / "none.toml")
    for content, reason in ((b"a = ", "Invalid value"), (b"\xff", "decode")):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(RunFileError, match=rf"bad.toml is not valid TOML: .*{reason}"):
            read_toml(tmp_path / "bad.toml")
