"""Columns of tables, and frames, as arrays of numbers."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data import tables
from compss_train.data.columns import named_columns, structured
from compss_train.training.data_source import as_data_source

FRAME = pd.DataFrame(
    {
        "age": [30, 41, 52],
        "height": [1.7, 1.8, 1.6],
        "kind": pd.Categorical(["b", "a", "b"]),
        "member": [True, False, True],
    }
)
NULLABLE = FRAME.astype({"age": "Int64", "height": "Float64", "member": "boolean"})
NUMBERS = np.array([[30, 1.7, 1, 1], [41, 1.8, 0, 0], [52, 1.6, 1, 1]])


def array_of(frame):
    return tables.frame_as_array(frame, "x", "float32")[0]


@given(st.lists(st.text(max_size=3), min_size=1))
def test_codes_name_the_values_again(strings):
    classes = tables.find_classes("c", strings)
    different, places = np.unique(np.array(strings, object), return_inverse=True)
    codes = tables.class_codes("c", list(different), places, classes)
    assert codes.dtype == np.int64
    assert [classes[code] for code in codes] == strings
    assert list(classes) == sorted(classes)


def test_values_that_do_not_occur_need_no_class():
    np.testing.assert_array_equal(tables.class_codes("kind", ["a", "c"], np.array([0, 0]), ("b", "a")), [1, 1])


@pytest.mark.parametrize("frame", [FRAME, NULLABLE], ids=["numpy", "nullable"])
@pytest.mark.parametrize("floats", ["float32", "float64", None])
def test_a_frame_is_a_matrix_in_the_dtype_of_the_network(frame, floats):
    array, notes = tables.frame_as_array(frame, "x", floats)
    assert array.dtype == (floats or "float64")
    np.testing.assert_array_equal(array, NUMBERS.astype(array.dtype))
    assert len(notes) == (floats == "float32")
    assert all(note.startswith("height: float64 becomes float32, the dtype of the network's") for note in notes)


def test_columns_without_a_fraction_stay_integers():
    assert array_of(FRAME[["age", "kind"]]).dtype == np.int64
    np.testing.assert_array_equal(array_of(FRAME["kind"]), [1, 0, 1])
    assert array_of(FRAME["age"]).shape == (3,)


@pytest.mark.parametrize("pack", [tuple, list, lambda parts: dict(zip("ab", parts, strict=True))])
def test_frames_may_be_parts_of_several_inputs(pack):
    frames = pack([FRAME[["height"]], FRAME["age"]])
    source = as_data_source(frames, np.zeros(3), 1, floats="float32")
    (_, matrix), (_, vector) = named_columns(source.x, "x")
    np.testing.assert_array_equal(matrix.collect(), NUMBERS[:, 1:2].astype(np.float32))
    np.testing.assert_array_equal(vector.collect(), FRAME["age"])
    assert source.notes[0].startswith(("x[0]", "x['a']", "height"))
    assert isinstance(structured(frames), dict if isinstance(frames, dict) else tuple)


WRONG = {
    "more than 10,000 different values in 'id'.*leave the column out": lambda: tables.find_classes(
        "id", map(str, range(tables.MAX_CLASSES + 1))
    ),
    r"mixes values of several types \(int, str\) in 'id'": lambda: tables.find_classes("id", ["a", 1]),
    "^x is a DataFrame that lacks a value in 'height', the first in row 1: fill": FRAME.assign(height=[1, None, 2]),
    "lacks a value in 'kind'": FRAME.assign(kind=pd.Categorical(["a", None, "b"])),
    r"holds str values in 'name', .*frame\['name'\]\.astype\('category'\)": FRAME.assign(name=list("abc")),
    "holds list values in 'parts'": FRAME.assign(parts=[[1], [2], [3]]),
    "holds datetime64.* in 'born', which are no": FRAME.assign(born=pd.to_datetime(["2000-01-01"] * 3)),
    "several of one name": pd.concat([FRAME, FRAME], axis=1),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_column_of_numbers_is_an_error(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]() if callable(WRONG[message]) else array_of(WRONG[message])


def test_only_fractions_take_the_dtype_of_the_network():
    assert tables.float_dtype(np.dtype("f8"), "float32") == np.float32
    assert tables.float_dtype(np.dtype("f2"), "float64") == np.float64
    assert tables.float_dtype(np.dtype("i8"), "float32") == np.int64
    assert tables.float_dtype(np.dtype("f8"), None) == np.float64


def test_frames_of_polars_are_those_of_pandas():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"age": [30, 41, 52], "height": [1.7, 1.8, 1.6], "kind": ["b", "a", "b"], "member": [True, False, True]},
        schema_overrides={"kind": polars.Enum(["a", "b"])},
    )
    np.testing.assert_array_equal(array_of(frame), array_of(FRAME))
    np.testing.assert_array_equal(array_of(frame["kind"]), [1, 0, 1])
    with pytest.raises(ValueError, match="lacks a value in 'a'"):
        array_of(polars.DataFrame({"a": [1.0, None]}))
    with pytest.raises(ValueError, match="holds str values in 'a'"):
        array_of(polars.DataFrame({"a": ["b"]}))
