"""Columns of tables as arrays of numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.layout import FileContentError
from compss_train.data.tables import (
    MAX_CLASSES,
    as_matrix,
    check_complete,
    check_numbers,
    class_codes,
    common_dtype,
    conversion_note,
    find_classes,
    float_dtype,
)


@given(st.lists(st.text(max_size=3), min_size=1))
def test_codes_name_the_values_again(strings):
    classes = find_classes("c", strings)
    different, places = np.unique(np.array(strings, object), return_inverse=True)
    codes = class_codes("c", list(different), places, classes)
    assert codes.dtype == np.int64
    assert [classes[code] for code in codes] == strings
    assert list(classes) == sorted(classes)


def test_a_value_that_is_no_class_is_an_error_with_its_row():
    with pytest.raises(FileContentError, match=r"^holds 'c' in 'kind', in row 2, .* 'a', 'b': give classes="):
        class_codes("kind", ["a", "c"], np.array([0, 0, 1]), ("a", "b"))


def test_values_that_do_not_occur_need_no_class():
    np.testing.assert_array_equal(class_codes("kind", ["a", "c"], np.array([0, 0]), ("b", "a")), [1, 1])


def test_too_many_values_and_mixed_types_are_no_classes():
    with pytest.raises(FileContentError, match=r"more than 10,000 different values in 'id'.*leave the column out"):
        find_classes("id", map(str, range(MAX_CLASSES + 1)))
    with pytest.raises(FileContentError, match=r"mixes values of several types \(int, str\) in 'id'"):
        find_classes("id", ["a", 1])


def test_missing_values_are_counted_and_found():
    check_complete("age", np.zeros(3, bool))
    with pytest.raises(FileContentError, match=r"^lacks 2 values in 'age', the first in row 1: fill them in"):
        check_complete("age", np.array([False, True, True]))
    with pytest.raises(FileContentError, match=r"^lacks a value in 'age', the first in row 0"):
        check_complete("age", np.array([True]))


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "m8[s]", "c16", "V2"])
def test_what_is_no_number_is_an_error(dtype):
    with pytest.raises(FileContentError, match=r"in 'when', which are no numbers: convert them"):
        check_numbers("when", np.dtype(dtype))


def test_numbers_and_booleans_are_accepted():
    for dtype in "?bBhHiIlLefd":
        check_numbers("n", np.dtype(dtype))


def test_columns_stand_side_by_side_in_their_common_dtype():
    columns = [np.arange(3, dtype=np.uint8), np.array([True, False, True]), np.array([0.5, 1.5, 2.5], np.float32)]
    dtype = common_dtype(column.dtype for column in columns)
    assert dtype == np.float32
    np.testing.assert_array_equal(as_matrix(columns, dtype), np.stack([c.astype(dtype) for c in columns], 1))


def test_only_fractions_take_the_dtype_of_the_network():
    assert float_dtype(np.dtype("f8"), "float32") == np.float32
    assert float_dtype(np.dtype("f2"), "float64") == np.float64
    assert float_dtype(np.dtype("i8"), "float32") == np.int64
    assert float_dtype(np.dtype("f8"), None) == np.float64


def test_a_note_names_columns_and_dtypes():
    note = conversion_note(["a", "b"], "float64", "float32")
    assert note.startswith("a, b: float64 becomes float32, the dtype of the network's parameters")
