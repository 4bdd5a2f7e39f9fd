"""Conversion of dislib's tensors."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from compss_train import BlockedTensor


def test_other_objects_than_tensors_are_errors():
    with pytest.raises(TypeError, match=r"expected a dislib Tensor.*got a SimpleNamespace"):
        BlockedTensor.from_dislib(SimpleNamespace(tensors=7))


def test_conversion_to_and_from_dislib(monkeypatch):
    module = ModuleType("dislib.data.tensor")
    module.Tensor = lambda **attributes: SimpleNamespace(**attributes)
    for name in ("dislib", "dislib.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", module)
    blocked = BlockedTensor.from_array(np.arange(12.0).reshape(6, 2), (3, 1))
    tensor = blocked.to_dislib()
    assert (tensor.shape, tensor.tensor_shape, tensor.number_samples, tensor.delete) == ((3, 1), (2, 2), 6, False)
    np.testing.assert_array_equal(BlockedTensor.from_dislib(tensor).collect(), blocked.collect())


def test_conversion_to_dislib_needs_dislib(monkeypatch):
    monkeypatch.setitem(sys.modules, "dislib.data.tensor", None)
    with pytest.raises(ImportError, match="to_dislib needs dislib"):
        BlockedTensor.from_array(np.ones((2, 1)), (1, 1)).to_dislib()


def test_futures_are_described_where_only_data_was_imported():
    program = """
import sys
from types import SimpleNamespace
from compss_train.data import BlockedTensor
assert "compss_train.engines" not in sys.modules
sys.modules["pycompss"] = None
try:
    BlockedTensor.from_dislib(SimpleNamespace(tensors=[[object()]]))
except ImportError as error:
    assert "the compss engine needs PyCOMPSs" in str(error)
else:
    raise SystemExit("a future was described without PyCOMPSs")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
