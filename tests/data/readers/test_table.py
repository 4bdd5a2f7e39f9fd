"""Tables: columns as arrays, in every format."""

import datetime
import re
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field
from compss_train.data.order import RowRange
from compss_train.data.readers import CsvReader
from tests.data.readers.formats import in_every, names, same
from tests.data.readers.table_files import ROWS, TABLES, TYPED, columns, lists, pa


def read_all(dataset):
    """Return the arrays of all blocks."""
    parts = [dataset.part([n]).read(RowRange(n, 0, size)) for n, size in enumerate(dataset.sizes)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


@in_every(TABLES)
def test_columns_are_one_array_and_strings_are_classes(tmp_path, form):
    saved = columns()
    dataset = FileDataset(form.saved(tmp_path, **saved), x=["a", "b"], y="kind")
    assert dataset.classes == {"kind": ("cat", "dog", "eel")}
    assert dataset.layout == {"x": Field("float64", (2,)), "kind": Field("int64", ())}
    arrays = read_all(dataset)
    same(arrays["x"], np.stack([saved["a"], saved["b"]], 1))
    same(arrays["kind"], np.arange(ROWS) % 3)
    assert dataset.training_keys() == ("x", "kind")


@pytest.fixture(scope="module")
def saved_tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return {
        name: form.saved(folder, re.sub(r"\W", "", name), **columns())
        for name, form in TABLES.items()
    }


@given(bounds=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).map(sorted))
@pytest.mark.parametrize("kind", TABLES)
def test_rows_of_a_table_are_the_slice(saved_tables, kind, bounds):
    reader = FileDataset(saved_tables[kind], x=["a", "b"], y="kind").reader
    arrays, rows = reader.read(saved_tables[kind], *bounds, ("x", "kind", "target"))
    assert rows == ROWS
    same(arrays["x"], np.stack([columns()["a"], columns()["b"]], 1)[slice(*bounds)])
    same(arrays["kind"], (np.arange(ROWS) % 3)[slice(*bounds)])
    same(arrays["target"], columns()["target"][slice(*bounds)])
    arrays["target"][...] = 0  # not the file's memory


@in_every(TYPED)
def test_lists_of_a_fixed_size_are_rows(tmp_path, form):
    x = np.arange(40, dtype=np.uint8).reshape(8, 5)
    image = np.arange(48, dtype=np.float32).reshape(8, 2, 3)
    nested = pa.FixedSizeListArray.from_arrays(lists(image, 3), 2)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(image)
    path = form.saved(
        tmp_path,
        x=lists(x),
        nested=nested,
        tensor=tensor,
        of_any=pa.array(list(map(list, image[:, 0]))),
    )
    dataset = FileDataset(path, y=None)
    assert dataset.layout["nested"] == dataset.layout["tensor"] == Field("float32", (2, 3))
    assert dataset.layout["of_any"].shape == (3,)
    arrays = read_all(dataset)
    same(arrays["x"], x)
    same(arrays["nested"], image)
    same(arrays["tensor"], image)
    np.testing.assert_array_equal(arrays["of_any"], image[:, 0])


@in_every(TYPED)
@pytest.mark.parametrize("permutation", [*permutations(range(3))])
def test_tensors_with_permuted_dimensions_are_read_in_their_order(tmp_path, form, permutation):
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 3, 4), permutation=permutation)
    stored = pa.FixedSizeListArray.from_arrays(pa.array(range(48), pa.int32()), 24)
    tensors = pa.ExtensionArray.from_storage(kind, stored)
    path = form.saved(tmp_path, x=tensors, y=[1, 2])
    if any(permutation[place] != number for number, place in enumerate(permutation)):
        with names(path, rf"holds tensors with permutation={re.escape(str([*permutation]))}"):
            read_all(FileDataset(path))
        return
    dataset = FileDataset(path)
    expected = np.arange(48, dtype=np.int32).reshape(2, 2, 3, 4)
    expected = expected.transpose(0, *(1 + dimension for dimension in permutation))
    assert dataset.layout["x"].shape == expected.shape[1:]
    np.testing.assert_array_equal(tensors.to_numpy_ndarray(), expected)  # as Arrow shows them
    same(read_all(dataset)["x"], expected)


@in_every(TYPED)
def test_dictionaries_of_arrow_are_classes_whatever_their_order(tmp_path, form):
    first = form.saved(
        tmp_path, "1", x=np.arange(3), y=pa.array(["b", "c", "b"]).dictionary_encode()
    )
    second = form.saved(tmp_path, "2", x=np.arange(2), y=pa.array(["c", "a"]).dictionary_encode())
    dataset = FileDataset([first, second])
    assert dataset.classes == {"y": ("a", "b", "c")}
    same(read_all(dataset)["y"], np.array([1, 2, 1, 2, 0]))


@in_every(TABLES)
def test_classes_that_are_given_are_used_and_must_be_all(tmp_path, form):
    path = form.saved(tmp_path, **columns())
    dataset = FileDataset(path, x=["a"], y="kind", classes={"kind": ["eel", "dog", "cat", "fox"]})
    same(read_all(dataset)["kind"], 2 - np.arange(ROWS) % 3)
    place = "'eel' in 'kind', in row 2"
    with names(path, f"holds {place}, which is none of its classes 'cat', 'dog': give classes="):
        read_all(FileDataset(path, x=["a"], y="kind", classes={"kind": ["cat", "dog"]}))


@in_every(TABLES)
def test_missing_values_are_an_error_with_their_row(tmp_path, form):
    values = pa.array([*range(10), None, 3, None])
    path = form.saved(tmp_path, x=np.arange(13), y=values)
    with names(
        path,
        ("lacks 2 values in 'y', the first in row 1[02]|lacks a value in 'y', the first in row 10"),
    ):
        read_all(FileDataset(path))
    text = form.saved(tmp_path, "text", x=np.arange(3), y=["a", None, "b"])
    with names(text, "lacks a value in 'y', the first in row 1: fill them in"):
        FileDataset(text)


@in_every(TABLES)
def test_a_missing_column_is_an_error_that_lists_the_others(tmp_path, form):
    path = form.saved(tmp_path, **columns())
    with names(path, "has no column 'nope'; it has 'a', 'b', 'kind', 'target'"):
        FileDataset(path, x=["a", "nope"], y="target")
    with pytest.raises(
        ValueError, match=("has no array 'x' for x, it has 'a', 'b', 'kind', 'target'")
    ):
        FileDataset(path, y="target").training_keys()


DAY = datetime.datetime(2024, 1, 1)
WRONG = [
    ({"x": [[1, 2], [3, 4], [5]]}, {}, "different lengths in 'x', 2 and 1 in row 2"),
    ({"x": [[[1], [2, 3]]] * 3}, {}, "different lengths within those of 'x'"),
    ({"x": [[1, None]] * 3}, {}, "within lists of 'x'"),
    ({"x": [1.0, 2.0], "z": [DAY] * 2}, {"x": ["x", "z"]}, "timestamp[us] in 'z'"),
    ({"x": [1.0, 2.0], "z": [[1], [2]]}, {"x": ["x", "z"]}, "lists in 'z'"),
    ({"x": [DAY] * 2}, {}, "timestamp[us] in 'x'"),
]


@pytest.mark.parametrize(("held", "options", "name"), WRONG)
@in_every(TYPED)
def test_columns_that_are_no_numbers_are_errors_where_used(
    tmp_path, form, held, options, name, raises
):
    path = form.saved(tmp_path, y=np.arange(len(held["x"])), **held)
    assert FileDataset(path, x="y", y=None).training_keys() == ("y",)
    with raises(BadFileError, name):
        read_all(FileDataset(path, y=None, **options))


@in_every(TYPED)
def test_tables_of_other_columns_or_dtypes_are_an_error(tmp_path, form):
    first = form.saved(tmp_path, "1", x=np.arange(3.0), y=np.arange(3))
    other = form.saved(tmp_path, "2", x=np.arange(3), y=np.arange(3))
    with names(other, r"holds samples of int64 \(\) in 'x', but .* of float64 \(\)"):
        FileDataset([first, other])
    with names(other, "has no column 'z'"):
        FileDataset(
            [form.saved(tmp_path, "3", x=np.arange(3), z=np.arange(3)), other], x=["z"], y="x"
        )


@in_every(TABLES)
def test_no_column_and_twice_the_same_are_errors(tmp_path, form):
    path = form.saved(tmp_path, **columns())
    for given_x in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="name at least one column, and each once"):
            FileDataset(path, x=given_x, y="target")
    with pytest.raises(TypeError, match="give the name of an array, or a list of names of columns"):
        FileDataset(path, x=3)


def test_only_tables_have_columns(tmp_path):
    np.savez(tmp_path / "f.npz", a=np.arange(3), b=np.arange(3))
    with pytest.raises(
        TypeError, match=r"x=\['a', 'b'\]: only tables \(Parquet, Arrow, CSV\) have them"
    ):
        FileDataset(str(tmp_path / "f.npz"), x=["a", "b"])
    with pytest.raises(TypeError, match="classes= is for tables"):
        FileDataset(str(tmp_path / "f.npz"), classes={"a": [1]})


@in_every(
    {
        "parquet": TABLES["parquet"],
        "arrow": TABLES["arrow"],
        "feather": TABLES[("feather, compressed")],
    }
)
def test_a_file_cut_short_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, **columns())
    with open(path, "rb") as file:
        content = file.read()
    for cut in range(0, len(content), 1 + len(content) // 40):
        with open(path, "wb") as file:
            file.write(content[:cut])
        with names(path):
            read_all(FileDataset([path], x=["a"], y="target"))


@in_every(TABLES)
def test_blocks_and_classes_are_kept_in_index_and_cache(tmp_path, form):
    options = {
        "x": ["a", "b"],
        "y": "kind",
        "index": tmp_path / "index.json",
        "cache": tmp_path / "cache",
    }
    path = form.saved(tmp_path, **columns())
    first = FileDataset(path, **options)
    dataset = FileDataset(path, **options)
    assert (first.classes, first.sizes, first.layout) == (
        dataset.classes,
        dataset.sizes,
        dataset.layout,
    )
    for number, size in enumerate(dataset.sizes):
        entry = dataset.part([number]).cache_entry(number)
        assert entry.load() is None
        arrays = dataset.part([number]).read(RowRange(number, 0, size))
        entry.store(arrays)
        same(dataset.part([number]).cache_entry(number).load()["x"], arrays["x"])
    assert len(list((tmp_path / "cache").glob("*/*.npz"))) == len(dataset.sizes)


def test_csv_has_options(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("1\t2\t0\n3\t4\t1\n")
    dataset = FileDataset(
        path, CsvReader(names=["a", "b", "y"], dtypes={"y": "int32"}), x=["a", "b"]
    )
    same(read_all(dataset)["x"], np.array([[1.0, 2.0], [3.0, 4.0]]))
    same(read_all(dataset)["y"], np.array([0, 1], np.int32))
    path.write_text("a;y\n0,5;1\n")
    with names(path, "has no column 'b'; it has 'a', 'y'"):
        FileDataset(path, CsvReader(delimiter=";"), x=["b"])


# Samplers and skipped files

OPTIONS = {"x": ["a", "b"], "y": "kind"}


@pytest.fixture
def path(tmp_path):
    return TABLES["parquet"].saved(tmp_path, **columns())


def sampler(path, **options):
    return PartialShuffleSampler(
        FileDataset(path, **OPTIONS), shuffle_buffer=8, batch_size=5, seed=0, **options
    )


def test_a_sampler_yields_rows_once_and_resumes_within_groups(path):
    batches = list(sampler(path))
    assert sorted(x for batch in batches for x in batch["x"][:, 0]) == sorted(columns()["a"])
    interrupted = sampler(path)
    resumed = sampler(path)
    next(iter(interrupted))
    resumed.load_state_dict(interrupted.state_dict())
    for ours, theirs in zip(resumed, batches[1:], strict=True):
        np.testing.assert_array_equal(ours["x"], theirs["x"])
        np.testing.assert_array_equal(ours["kind"], theirs["kind"])
