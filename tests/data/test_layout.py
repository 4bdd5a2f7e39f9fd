"""Layouts: fields, lengths and agreement of files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.layout import Field, FileContentError, check_same_layout, common_length, field_of
from compss_train.data.readers.base import check_no_objects, describe_arrays, select_keys

NAMES = st.text("abcxyz", min_size=1, max_size=3)
FIELDS = st.builds(Field, st.sampled_from(["float32", "int64", "torch.float32"]), st.tuples(st.integers(0, 3)))
LAYOUTS = st.dictionaries(NAMES, FIELDS, min_size=1, max_size=3)


@given(layout=LAYOUTS, other=LAYOUTS)
def test_layouts_are_alike_in_any_order_or_an_error_says_in_what_they_differ(layout, other):
    check_same_layout(dict(reversed(layout.items())), layout, "a.npz")
    if layout == other:
        check_same_layout(layout, other, "a.npz")
        return
    with pytest.raises(FileContentError, match=r"^holds (arrays|samples of) .*, but a\.npz (holds|of) ") as caught:
        check_same_layout(layout, other, "a.npz")
    differ = [key for key in layout if layout[key] != other.get(key)] or set(other) - set(layout)
    assert any(repr(key) in str(caught.value) for key in differ)


@given(lengths=st.dictionaries(NAMES, st.integers(0, 2)))
def test_the_common_length_is_that_of_all_arrays_or_an_error(lengths):
    if len(set(lengths.values())) == 1 and 0 not in lengths.values():
        assert {common_length(lengths)} == set(lengths.values())
        return
    with pytest.raises(FileContentError, match=r"holds (no arrays|no samples|arrays of different lengths)"):
        common_length(lengths)


@pytest.mark.parametrize("block", [np.zeros((3, 2, 1), np.uint8), torch.zeros(3, 2, 1, dtype=torch.bfloat16)])
def test_a_field_is_what_rows_have_in_common(block):
    assert field_of(block) == field_of(block[:1]) == Field(str(block.dtype), (2, 1))
    assert str(field_of(block)) == f"{block.dtype} (2, 1)"


WRONG = {
    r"different lengths: 'x' 3, 'y' 0; each needs a row per sample$": lambda: common_length({"x": 3, "y": 0}),
    "holds a single value in 'y' instead of a row per sample; select the other": lambda: describe_arrays(
        {"x": np.zeros(3), "y": torch.tensor(3)}
    ),
    "holds Python objects in 'x', which are pickled and therefore not read": lambda: check_no_objects(
        "x", np.dtype([("a", [("b", object, 3)])])
    ),
    "holds Python objects in 'y'": lambda: check_no_objects("y", np.dtype(object)),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_array_of_samples_is_an_error(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("U3"), np.dtype([("a", int)]), torch.float32])
def test_other_dtypes_are_not(dtype):
    check_no_objects("x", dtype)


@given(names=st.lists(NAMES, unique=True), data=st.data())
def test_keys_are_selected_in_their_own_order(names, data):
    assert select_keys(None, names) == names
    keys = data.draw(st.permutations(names))
    assert select_keys(keys, names) == keys
    with pytest.raises(FileContentError, match=r"^has no array 'missing', 'other'; it has "):
        select_keys(["missing", *keys, "other"], names)
