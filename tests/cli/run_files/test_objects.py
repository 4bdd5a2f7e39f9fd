import functools
import math
import sys

import pytest
import torch
from torch import nn

from compss_train.cli.run_files.objects import resolve


def test_strings_name_objects_and_tables_call_them():
    assert resolve("import:math:pi") == math.pi
    assert resolve("import:torch:Tensor.float") is torch.Tensor.float
    layer = resolve({"import": "torch.nn:Linear", "in_features": 3, "out_features": 2, "bias": False})
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.bias) == (3, None)
    linear = resolve({"partial": "torch.nn:Linear", "in_features": 3})
    assert isinstance(linear, functools.partial)
    assert linear(out_features=4).out_features == 4


def test_objects_are_resolved_at_any_depth_with_positional_arguments_and_keywords():
    value = {"a": [1, {"b": "import:math:pi"}], "c": "import", "d": {"import": "builtins:list"}}
    assert resolve(value) == {"a": [1, {"b": math.pi}], "c": "import", "d": []}
    net = resolve({"import": "torch.nn:Sequential", "arguments": [{"import": "torch.nn:ReLU"}]})
    assert isinstance(net[0], nn.ReLU)

    assert resolve({"import": "builtins:divmod", "arguments": [7, 2]}) == (3, 1)
    assert resolve({"import": "builtins:dict", "a": 1, "arguments": {"import": 2}}) == {"a": 1, "import": 2}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("import:math", 'names no object: write "module:name"'),
        ({"import": 3}, "names no object"),
        ("import:torch.nn:Linar", "torch.nn has no Linar; did you mean Linear?"),
        ("import:nowhere.at.all:x", "module nowhere was not found; install it, or put its file next to"),
        ({"import": "math:pi"}, 'cannot be called; for the object itself write "import:math:pi"'),
        ({"import": "torch.nn:Linear", "in_feature": 1}, "has no argument in_feature; did you mean in_features?"),
        ({"import": "torch.nn:Linear", "in_features": 1}, "missing a required argument: 'out_features'"),
        ({"partial": "torch.nn:Linear", "size": 1}, "has no argument size; it takes in_features, out_features"),
        ({"import": "torch.nn:Linear", "partial": "a:b"}, "not both"),
        ({"import": "builtins:dict", "arguments": 3}, "arguments = 3: give an array of values, or a table"),
        ({"import": "builtins:dict", "a": 1, "arguments": {"a": 1}}, "a is given twice, also in arguments"),
        ({"import": "torch.nn:Linear", "in_features": -1, "out_features": 1}, "calling torch.nn:Linear failed: "),
        ({"import": "builtins:dict", "a": {"import": "math:po"}}, "math has no po; did you mean p"),
    ],
)
def test_invalid_objects_are_an_error(value, message):
    with pytest.raises(ValueError) as error:
        resolve({"key": [value]})
    assert message in str(error.value)


def test_modules_that_fail_to_import_are_an_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "objects_that_fail.py").write_text("import objects_that_are_not_there\n")
    (tmp_path / "objects_that_raise.py").write_text("1 / 0\n")
    for name, message in (
        ("fail", "importing objects_that_fail failed: No module named 'objects_that_are_not_there'"),
        ("raise", "importing objects_that_raise failed: ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve(f"import:objects_that_{name}:x")
        assert f"objects_that_{name}" not in sys.modules
