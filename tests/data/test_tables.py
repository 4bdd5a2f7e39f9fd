"""Columns of tables, of Arrow's, and frames, as arrays of numbers."""

import pickle

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import Ragged, Samples
from compss_train.data.classes import MAX_CLASSES, class_codes, find_classes
from compss_train.data.frames import frame_as_array
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
    return frame_as_array(frame, "x", "float32")[0]


@given(st.lists(st.text(max_size=3), min_size=1))
def test_codes_name_the_values_again(strings):
    classes = find_classes("c", strings)
    different, places = np.unique(np.array(strings, object), return_inverse=True)
    codes = class_codes("c", list(different), places, classes=classes)
    assert codes.dtype == np.int64
    assert [classes[code] for code in codes] == strings
    assert list(classes) == sorted(classes)


@pytest.mark.parametrize("frame", [FRAME, NULLABLE], ids=["numpy", "nullable"])
@pytest.mark.parametrize("floats", ["float32", "float64", None])
def test_a_frame_is_a_matrix_in_the_networks_dtype(frame, floats):
    array, notes, remarks, _ = frame_as_array(frame, "x", floats)
    assert array.dtype == (floats or "float64")
    np.testing.assert_array_equal(array, NUMBERS.astype(array.dtype))
    *converted, codes = notes
    assert len(converted) == (floats == "float32")
    assert all(
        note.startswith("float64 becomes float32, the dtype of the network's") for note in converted
    )
    assert codes.startswith(
        f"'kind' in x are class codes, and become {array.dtype} like the numbers beside them"
    )
    (integers,) = remarks
    assert integers.startswith(
        f"the integers of 'age' in x become {array.dtype}, like the numbers beside them"
    )
    assert integers.endswith("as in x={'numbers': ..., 'codes': frame[['age']]}")
    assert frame_as_array(frame[["age", "kind"]], "x", floats)[1:3] == ([], [])


@pytest.mark.parametrize("pack", [tuple, list, lambda parts: dict(zip("ab", parts, strict=True))])
def test_frames_may_be_parts_of_several_inputs(pack):
    frames = pack([FRAME[["height"]], FRAME["age"]])
    source = as_data_source(frames, np.zeros(3), 1, floats=lambda: "float32")
    matrix, vector, _ = source.columns.values()
    np.testing.assert_array_equal(matrix.collect(), NUMBERS[:, 1:2].astype(np.float32))
    np.testing.assert_array_equal(vector.collect(), FRAME["age"])
    assert source.notes[0].startswith("float64 becomes float32")
    assert isinstance(source.structure.x, dict if isinstance(frames, dict) else tuple)


WRONG = {
    "10,000 different values in 'id'": lambda: find_classes("id", map(str, range(MAX_CLASSES + 1))),
    "(int, str) in 'id'": lambda: find_classes("id", ["a", 1]),
    "lacks a value in 'height', the first in row 1": FRAME.assign(height=[1, None, 2]),
    "lacks a value in 'kind'": FRAME.assign(kind=pd.Categorical(["a", None, "b"])),
    "holds str values in 'name'": FRAME.assign(name=list("abc")),
    "holds list values in 'parts'": FRAME.assign(parts=[[1], [2], [3]]),
    "dates or times in 'born'": FRAME.assign(born=pd.to_datetime(["2000-01-01"] * 3)),
    "several of one name": pd.concat([FRAME, FRAME], axis=1),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_column_of_numbers_is_an_error(name, raises):
    with raises(ValueError, name):
        WRONG[name]() if callable(WRONG[name]) else array_of(WRONG[name])


def test_frames_of_polars_are_those_of_pandas():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "age": [30, 41, 52],
            "height": [1.7, 1.8, 1.6],
            "kind": ["b", "a", "b"],
            "member": [True, False, True],
        },
        schema_overrides={"kind": polars.Enum(["a", "b"])},
    )
    np.testing.assert_array_equal(array_of(frame), array_of(FRAME))
    np.testing.assert_array_equal(array_of(frame["kind"]), [1, 0, 1])
    for values in (
        ["x", "y"],
        ["b", "a", "b"],
    ):  # polars counts on from what it has read before
        kinds = polars.Series("kind", values, dtype=polars.Categorical)
        read = frame_as_array(kinds, "y", None)
        assert (read.array.tolist(), read.coding) == (
            [sorted({*values}).index(value) for value in values],
            {"the classes of y": tuple(sorted({*values}))},
        )
    with pytest.raises(ValueError, match="lacks a value in 'a'"):
        array_of(polars.DataFrame({"a": [1.0, None]}))
    with pytest.raises(ValueError, match="holds str values in 'a'"):
        array_of(polars.DataFrame({"a": ["b"]}))


datasets = pytest.importorskip("datasets")
List = datasets.List
Value = datasets.Value
ROWS = 23


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A data set in files, in chunks of four rows."""
    random = np.random.default_rng(0)
    columns = {
        "number": random.normal(size=ROWS),
        "fixed": random.normal(size=(ROWS, 3)).astype(np.float32).tolist(),
        "image": random.normal(size=(ROWS, 2, 3)).astype(np.float32).tolist(),
        "lists": random.normal(size=(ROWS, 2)).tolist(),
        "tokens": [list(range(n % 4)) for n in range(ROWS)],
        "flag": (random.normal(size=ROWS) > 0).tolist(),
        "name": [f"no. {n}" for n in range(ROWS)],
        "label": random.integers(0, 3, ROWS).tolist(),
    }
    features = {
        "number": Value("float64"),
        "fixed": List(Value("float32"), length=3),
        "image": datasets.Array2D((2, 3), "float32"),
        "lists": List(Value("float64")),
        "tokens": List(Value("int64")),
        "flag": Value("bool"),
        "name": Value("string"),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
    }
    folder = str(tmp_path_factory.mktemp("table"))
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).save_to_disk(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 4)
        datasets.load_from_disk(folder).map(
            lambda row: row, cache_file_name=f"{folder}/mapped.arrow", writer_batch_size=4
        )
    return datasets.Dataset.from_file(f"{folder}/mapped.arrow")


def rows_of(dataset, numbers, **options):
    reader = pickle.loads(cloudpickle.dumps(Samples(dataset, **options).reader(2, "float32")))
    return reader.read(np.asarray(numbers), 0, 0, lambda _: 0, None)


ORDERS = {
    "as it is": lambda dataset: dataset,
    "shuffled": lambda dataset: dataset.shuffle(seed=3),
    "selected": lambda dataset: dataset.select([5, 3, 3, 22, 0, 1, 2]),
    "cut": lambda dataset: dataset.select(range(3, 20)),
    "joined": lambda dataset: datasets.concatenate_datasets([dataset, dataset.select(range(5))]),
    "with another format": lambda dataset: dataset.with_format("torch"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["number", "fixed", "image", "lists", "flag", "label"])
def test_rows_are_those_of_the_data_set(table, order, name):
    dataset = ORDERS[order](table)
    numbers = np.random.default_rng(1).integers(0, len(dataset), 17)
    expected = np.array(dataset.with_format(None)[name])[numbers]
    batch = rows_of(dataset, numbers, x=name, y="label")
    wanted = expected.astype(np.float32) if expected.dtype == np.float64 else expected
    torch.testing.assert_close(batch.x, torch.from_numpy(wanted), rtol=0, atol=0)
    assert batch.y.tolist() == [
        dataset.with_format(None)[int(number)]["label"] for number in numbers
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_lists_that_differ_in_length_are_sequences(table, order):
    dataset = ORDERS[order](table)
    numbers = [4, 0, 3, 6, 6]
    batch = rows_of(dataset, numbers, x="tokens", y="label")
    assert isinstance(batch.x, Ragged)
    assert [sequence.tolist() for sequence in batch.x] == [
        dataset.with_format(None)[n]["tokens"] for n in numbers
    ]


UNREADABLE = [
    ([[[1.0, 2.0]], [[1.0], [2.0, 3.0]], [[5.0, 6.0]]], "different lengths within those of 'x'"),
    ([[[1.0, 2.0]], [[1.0, None]], [[5.0, 6.0]]], "lacks values within lists of 'x'"),
    ([[1.0, 2.0], [None, 2.0], [5.0, 6.0]], "lacks values within lists of 'x'"),
    ([[[1.0, 2.0]], None, [[5.0, 6.0]]], "lacks a value in 'x', the first in row 1"),
    ([1.0, None, 3.0], "lacks a value in 'x', the first in row 1"),
]


@pytest.mark.parametrize(("rows", "name"), UNREADABLE)
def test_values_that_cannot_be_read_are_errors(rows, name, raises):
    dataset = datasets.Dataset.from_dict({"x": rows, "label": [0, 1, 0]})
    for complete in (
        dataset.select([2, 0]),
        dataset.filter(lambda row: row["label"] == 0).select([1, 0]),
    ):
        assert rows_of(complete.flatten_indices(), [0, 1, 1]).x.tolist() == [
            rows[2],
            rows[0],
            rows[0],
        ]
        with raises(ValueError, "dataset.flatten_indices"):
            rows_of(complete, [0])
    with raises(ValueError, name):
        rows_of(dataset, [0])


def test_the_names_of_columns_say_what_x_and_y_are(table):
    batch = rows_of(table.remove_columns(["name", "tokens"]), [1, 2])
    assert list(batch.x) == ["number", "fixed", "image", "lists", "flag"]
    assert batch.y.tolist() == table[1:3]["label"]
    with pytest.raises(ValueError, match="no part 'nome', it has 'number', 'fixed'"):
        rows_of(table, [0], x="nome")
