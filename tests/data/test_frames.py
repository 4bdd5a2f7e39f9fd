"""Frames and series as arrays of numbers."""

import numpy as np
import pandas as pd
import pytest

from compss_train.data.frames import without_frames

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


def array_of(value, floats="float32"):
    return without_frames(value, "x", floats)[0]


@pytest.mark.parametrize("frame", [FRAME, NULLABLE], ids=["numpy", "nullable"])
@pytest.mark.parametrize("floats", ["float32", "float64", None])
def test_a_frame_is_a_matrix_in_the_dtype_of_the_network(frame, floats):
    array, notes = without_frames(frame, "x", floats)
    assert array.dtype == (floats or "float64")
    np.testing.assert_array_equal(array, NUMBERS.astype(array.dtype))
    assert notes == ([] if floats != "float32" else notes[:1])
    assert all(note.startswith("height: float64 becomes float32") for note in notes)


def test_columns_without_a_fraction_stay_integers():
    assert array_of(FRAME[["age", "kind"]]).dtype == np.int64
    np.testing.assert_array_equal(array_of(FRAME["kind"]), [1, 0, 1])
    assert array_of(FRAME["age"]).shape == (3,)


def test_parts_of_several_inputs_are_converted():
    array = np.zeros(3)
    pair = array_of((FRAME[["height"]], array))
    assert pair[1] is array
    assert pair[0].shape == (3, 1)
    named, notes = without_frames({"a": FRAME["height"], "b": array}, "x", "float32")
    assert named["a"].dtype == np.float32
    assert notes[0].startswith("x['a']: float64 becomes")


@pytest.mark.parametrize("value", [np.zeros(3), [1, 2], [[1.0], [2.0]], None])
def test_other_data_are_left_alone(value):
    assert without_frames(value, "x", "float32") == (value, [])


def with_column(**columns):
    return FRAME.assign(**columns)


BAD = {
    r"x is a DataFrame that lacks a value in 'height', the first in row 1: fill them in": with_column(
        height=[1.0, None, 2.0]
    ),
    "lacks a value in 'kind'": with_column(kind=pd.Categorical(["a", None, "b"])),
    r"holds str values in 'name', .*frame\['name'\]\.astype\('category'\)": with_column(name=["a", "b", "c"]),
    "holds list values in 'parts'": with_column(parts=[[1], [2], [3]]),
    "holds datetime64.* in 'born', which are no numbers: convert them": with_column(
        born=pd.to_datetime(["2000-01-01"] * 3)
    ),
    "several of one name": pd.concat([FRAME, FRAME], axis=1),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_number_is_an_error(message):
    with pytest.raises(ValueError, match=message):
        array_of(BAD[message])


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
