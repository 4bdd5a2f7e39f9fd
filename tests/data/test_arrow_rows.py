"""Columns of Hugging Face's data sets: the rows that the data set has, whatever its chunks and its order are."""

import pickle

import cloudpickle
import numpy as np
import pytest
import torch

from compss_train import Ragged, Samples
from compss_train.data.block_passes import Place

datasets = pytest.importorskip("datasets")
List, Value = datasets.List, datasets.Value
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
    return reader.read(np.asarray(numbers), Place(0, 0, 0), lambda _: 0, None)


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
    assert batch.y.tolist() == [dataset.with_format(None)[int(number)]["label"] for number in numbers]


@pytest.mark.parametrize("order", ORDERS)
def test_lists_that_differ_in_length_are_sequences(table, order):
    dataset = ORDERS[order](table)
    numbers = [4, 0, 3, 6, 6]
    batch = rows_of(dataset, numbers, x="tokens", y="label")
    assert isinstance(batch.x, Ragged)
    assert [each.tolist() for each in batch.x] == [dataset.with_format(None)[n]["tokens"] for n in numbers]


UNREADABLE = [
    (
        [[[1.0, 2.0]], [[1.0], [2.0, 3.0]], [[5.0, 6.0]]],
        "holds lists of different lengths within those of 'x': pad",
    ),
    ([[[1.0, 2.0]], [[1.0, None]], [[5.0, 6.0]]], "lacks values within lists of 'x'"),
    ([[1.0, 2.0], [None, 2.0], [5.0, 6.0]], "lacks values within lists of 'x'"),
    ([[[1.0, 2.0]], None, [[5.0, 6.0]]], "lacks a value in 'x', the first in row 1"),
    ([1.0, None, 3.0], "the data set lacks a value in 'x', the first in row 1: fill them in"),
]


@pytest.mark.parametrize(("rows", "message"), UNREADABLE)
def test_values_are_errors_where_they_cannot_be_read_and_are_not_left_out(rows, message):
    dataset = datasets.Dataset.from_dict({"x": rows, "label": [0, 1, 0]})
    for complete in (dataset.select([2, 0]), dataset.filter(lambda row: row["label"] == 0).select([1, 0])):
        assert rows_of(complete.flatten_indices(), [0, 1, 1]).x.tolist() == [rows[2], rows[0], rows[0]]
        with pytest.raises(ValueError, match=r"if these rows were left out, give dataset\.flatten_indices"):
            rows_of(complete, [0])
    with pytest.raises(ValueError, match=message):
        rows_of(dataset, [0])


def test_the_names_of_columns_say_what_x_and_y_are(table):
    batch = rows_of(table.remove_columns(["name", "tokens"]), [1, 2])
    assert list(batch.x) == ["number", "fixed", "image", "lists", "flag"]
    assert batch.y.tolist() == table[1:3]["label"]
    with pytest.raises(ValueError, match="no part 'nome', it has 'number', 'fixed'"):
        rows_of(table, [0], x="nome")


def test_what_arrow_has_no_numbers_for_is_read_by_the_data_set(table):
    shouting = table.with_transform(lambda rows: {"x": [len(name) for name in rows["name"]], "y": rows["label"]})
    batch = rows_of(shouting, [3, 12])
    assert batch.x.tolist() == [5, 6]
    pixels = [np.full((2, 2), n, np.uint8) for n in range(3)]
    features = datasets.Features({"image": datasets.Image(), "label": Value("int64")})
    images = datasets.Dataset.from_dict({"image": pixels, "label": [0, 1, 2]}, features=features)
    batch = rows_of(images, [2, 0])
    assert (batch.x.dtype, batch.x.tolist()) == (torch.uint8, [[[2, 2], [2, 2]], [[0, 0], [0, 0]]])
    with pytest.raises(TypeError, match=r"a sample holds the str 'no\. 3', which is no number"):
        rows_of(table, [3], x="name", y="label")


def test_missing_lists_of_a_fixed_size_are_not_left_out():
    kind = datasets.Features({"x": datasets.List(datasets.List(datasets.Value("float32"), length=2))})
    lists = datasets.Dataset.from_dict({"x": [[[1, 2], [3, 4]], [None, None], [[5, 6], [7, 8]]]}, features=kind)
    with pytest.raises(ValueError, match="lacks values within lists of 'x'"):
        rows_of(lists, [0, 2], x="x", y=None)
    complete = lists.select([2, 0]).flatten_indices()
    assert rows_of(complete, [0, 1], x="x", y=None).x.tolist() == [[[5, 6], [7, 8]], [[1, 2], [3, 4]]]


def test_nothing_but_the_paths_of_files_is_pickled(table):
    reader = Samples(table, x="image", y="label").reader(2, "float32")
    reader.read_first()
    assert len(pickle.dumps(reader)) < 5000


def test_conversions_are_noted(table):
    assert (
        "number, lists: float64 becomes float32"
        in Samples(table, x=["number", "lists"]).reader(2, "float32").notes[0]
    )
    assert Samples(table, x=["number", "lists"]).reader(2, None).notes == ()


def test_fingerprints_see_other_rows(table):
    def of(dataset):
        return Samples(dataset, x="fixed", y="label").reader(2, "float32").fingerprint((0, 9), (9, 20))

    assert of(table) == of(table.with_format("numpy"))
    assert of(table) != of(table.shuffle(seed=1))
