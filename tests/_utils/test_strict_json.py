"""JSON that every parser reads."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train._utils import strict_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5).filter(lambda t: t not in strict_json.NOT_FINITE),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def refused(name):
    raise AssertionError(f"{name} is no JSON")


@given(VALUES)
def test_every_parser_reads_it_and_numbers_come_back(value):
    text = strict_json.dumps(value)
    json.loads(text, parse_constant=refused)
    assert repr(strict_json.loads(text)) == repr(value)


@given(VALUES)
def test_what_earlier_versions_wrote_is_read(value):
    assert repr(strict_json.loads(json.dumps(value))) == repr(value)


def test_others_are_converted_first():
    text = strict_json.dumps(
        {"a": np.float32("inf"), "b": np.array([1, np.nan])}, lambda value: value.tolist()
    )
    assert text == '{"a": "Infinity", "b": [1.0, "NaN"]}'
    with pytest.raises(TypeError):
        strict_json.dumps({"a": math.nan, "b": object()})
