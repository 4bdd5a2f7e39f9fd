"""A test that fails if assertions are checked, in this module and in the tests' helpers."""

import numpy as np
import pytest

from tests.helpers.models import assert_same_bits


def test_a_wrong_assertion_fails():
    with pytest.raises(AssertionError):  # of the helper, which python -O would remove
        assert_same_bits({"a": np.zeros(1)}, {"a": np.ones(1)})
    assert 1 == 2
