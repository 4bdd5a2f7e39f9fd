"""Columns of text: what they are is decided once for all files, and each value is what was written,
or refused.
"""

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset
from compss_train.data.classes import MAX_CLASSES
from compss_train.data.readers import CsvReader
from compss_train.data.text_columns import text_among_numbers
from tests.data.readers.formats import in_every, names, same
from tests.data.readers.table_files import TABLES, TYPED, pa
from tests.data.readers.test_table import read_all

WORDS = st.sampled_from(
    ["1", "2", "10", "-3", "2.5", "B", "cat", "two words", "a,b", 'say "a"', "é"]
)
FILES = st.lists(st.lists(WORDS, min_size=1, max_size=5), min_size=1, max_size=4)


def written(folder, files, header=("x", "y")):
    paths = [str(folder / f"{number}.csv") for number in range(len(files))]
    for path, cells in zip(paths, files, strict=True):
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *((row, cell) for row, cell in enumerate(cells))])
    return paths


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def is_number(text):
    try:
        return isinstance(float(text), float)
    except ValueError:
        return False


@given(files=FILES, data=st.data())
def test_values_of_csv_files_are_those_that_the_csv_module_reads_or_refused(folder, files, data):
    paths = written(folder, files)
    cells = list(itertools.chain(*files))
    different = set(cells)
    chosen = data.draw(st.none() | st.permutations(sorted({*cells, "unused"})), label="classes")
    numbers = different if all(map(is_number, different)) else set(filter(is_number, different))
    integers = [all(cell.strip("-").isdecimal() for cell in cells) for cells in files]
    if chosen is None and 2 * len(numbers) > len(different) > len(numbers):
        with pytest.raises(BadFileError, match=r"in 'y', in row .*, where most values are numbers"):
            FileDataset(paths)
    elif chosen is None and numbers == different and len(set(integers)) == 2:
        with pytest.raises(BadFileError, match=r"holds samples of (int|float)64"):
            FileDataset(paths)
    elif chosen is None and numbers == different:
        dataset = FileDataset(paths)
        assert (read_all(dataset)["y"].tolist(), dataset.classes) == (list(map(float, cells)), {})
    else:
        dataset = FileDataset(paths, classes=None if chosen is None else {"y": chosen})
        assert [dataset.classes["y"][code] for code in read_all(dataset)["y"]] == cells


@given(
    kinds=st.lists(st.sampled_from(["words", "numbers"]), min_size=1, max_size=3),
    given_classes=st.booleans(),
)
@pytest.mark.parametrize("kind", [*TYPED, "json lines"])
def test_files_with_types_have_the_same_type_or_are_refused(folder, kind, kinds, given_classes):
    values = {"words": ["b", "a", "b"], "numbers": [5, 7, 5]}
    paths = [
        TABLES[kind].saved(folder, f"{kind}{number}", x=np.arange(3), y=values[values_kind])
        for number, values_kind in enumerate(kinds)
    ]
    classes = {"y": ["b", "a"] if kinds[0] == "words" else [7, 5]} if given_classes else None
    unlike = [
        path for path, values_kind in zip(paths, kinds, strict=True) if values_kind != kinds[0]
    ]
    if unlike:
        with names(unlike[0], "'y'"):
            FileDataset(paths, classes=classes)
        return
    dataset = FileDataset(paths, classes=classes)
    codes = read_all(dataset)["y"].tolist()
    expected = values[kinds[0]] * len(kinds)
    assert (
        [dataset.classes["y"][code] for code in codes] == expected
        if dataset.classes
        else codes == expected
    )


NUMBERS = {
    "a mark for a missing value": (["1", "2", "?"], "'?' in 'x', in row 2"),
    "a zero and a mark": (["0", "n/a "], "'n/a ' in 'x', in row 1"),
    "decimal commas": (["1,5", "2,25"], "'1,5' in 'x', in row 0"),
    "thousands": (["900", "1,200"], "'1,200' in 'x', in row 1"),
    "thousands with spaces": (["900", "1 200 000.5"], "'1 200 000.5' in 'x', in row 1"),
    "percentages": (["12.5%", "100 %"], "'100 %' in 'x', in row 1"),
    "money": (["$5", "7€"], "'\\$5' in 'x', in row 0"),
    "typographic minus signs": (["−1.5", "−2"], "'−1.5' in 'x', in row 0"),  # noqa: RUF001
    "exponents of Fortran": (["1.5D+03", "2.5d-01"], "'1.5D\\+03' in 'x', in row 0"),
    "negative numbers of accountants": (["(5.50)", "7"], "'\\(5.50\\)' in 'x', in row 0"),
    "digits in groups": (["1_000", "2’000"], "'1_000' in 'x', in row 0"),  # noqa: RUF001
    "a comment": (["1.5", "2.5", "see below"], "'see below' in 'x', in row 2"),
}


@pytest.mark.parametrize(("values", "reason"), NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("options", [{"x": "x"}, {"x": ["x", "z"]}, {"x": "z", "y": "x"}], ids=str)
@in_every(TABLES)
def test_numbers_that_are_text_are_no_classes(tmp_path, form, options, values, reason):
    path = form.saved(tmp_path, x=values, y=np.arange(len(values)), z=np.arange(len(values)))
    with names(
        path, (f"{reason}, where most values are numbers: convert it.*or give classes={{'x': ")
    ):
        FileDataset(path, **options)
    codes = read_all(FileDataset(path, **options, classes={"x": values}))["x"]
    assert codes.reshape(len(values), -1)[:, 0].tolist() == list(range(len(values)))


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        ["0", "1", "10"],
        ["-1", "1"],
        ["08001", "08002"],
        ["?", "a", "b"],
        ["1.2.3", "1.2.4"],
        ["0-10", "5"],
    ],
    ids=str,
)
def test_words_and_names_of_classes_are_classes(values):
    assert text_among_numbers(values) is None


def test_a_value_is_named_with_its_file_and_row(tmp_path):
    paths = written(tmp_path, [["1", "2"], ["3", "oops", "4"]])
    with names(paths[1], "holds 'oops' in 'y', in row 1, where most values are numbers"):
        FileDataset(paths)
    paths = written(tmp_path, [[*map(str, range(MAX_CLASSES)), "?"]])
    with names(
        paths[0], rf"holds '\?' in 'y', in row {MAX_CLASSES}, where most values are numbers"
    ):
        FileDataset(paths)


def test_no_number_is_named_in_the_file_that_is_opened_of_those_counted_beforehand(tmp_path):
    paths = written(tmp_path, [["1.5", "2.5", "?"], ["1", "2", "3"]])
    with names(paths[0], r"holds '\?' in 'y', in row 2, where most values are numbers"):
        FileDataset(paths, files_len=dict.fromkeys(paths, 3))


def test_files_that_were_counted_beforehand_are_checked_when_they_are_read(tmp_path):
    paths = written(tmp_path, [["B", "1"], ["1", "2"]])
    for order in (paths, paths[::-1]):
        dataset = FileDataset(order, files_len=dict.fromkeys(paths, 2))
        with names(order[1], "'y'"):
            read_all(dataset)


@pytest.mark.parametrize("classes", [None, ["EU", "NA"], ["null", "NA", "EU"]])
def test_words_for_missing_values_may_be_given_as_classes(tmp_path, classes):
    paths = written(tmp_path, [["EU", "NA"], ["NA"]])
    if classes is None:
        with names(paths[0], "lacks a value in 'y', the first in row 1"):
            FileDataset(paths)
        return
    codes = read_all(FileDataset(paths, classes={"y": classes}))["y"]
    assert [classes[code] for code in codes] == ["EU", "NA", "NA"]


@given(
    values=st.lists(
        st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False), min_size=1
    )
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_integers_are_not_rounded_without_a_word(folder, suffix, values):
    path = folder / f"large.{suffix}"
    with open(path, "w") as file:
        file.writelines(["x\n" if suffix == "csv" else ""])
        file.writelines(
            f'{{"x": {value}}}\n' if suffix == "jsonl" else f"{value}\n" for value in values
        )
    large = [value for value in values if isinstance(value, int) and not -(2**63) <= value < 2**63]
    if large:
        with names(
            path,
            (f"holds {large[0]} in 'x', in row {values.index(large[0])}, and the largest integer"),
        ):
            FileDataset(path, y=None)
    else:
        same(read_all(FileDataset(path, y=None))["x"], np.array(values))
    if suffix == "csv":
        rounded = read_all(FileDataset(path, CsvReader(dtypes={"x": "float64"}), y=None))["x"]
        same(rounded, np.array(list(map(float, values))))


WRONG_CLASSES = [
    (TypeError, "ab"),
    (TypeError, ["1", 2]),
    (ValueError, ["a", "b", "a"]),
    (ValueError, []),
]


@pytest.mark.parametrize(("error", "classes"), WRONG_CLASSES, ids=str)
def test_wrong_classes_are_refused(tmp_path, error, classes, raises):
    path = TABLES["csv"].saved(tmp_path, x=np.arange(2), y=["a", "b"])
    with raises(error, f"classes={{'y': {classes!r}}}"):
        FileDataset(path, classes={"y": classes})


@in_every(TABLES)
def test_numbers_may_be_classes(tmp_path, form):
    path = form.saved(tmp_path, x=np.arange(3), y=np.array([7, 5, 7]))
    assert read_all(FileDataset(path, classes={"y": [7, 5]}))["y"].tolist() == [0, 1, 0]
    assert read_all(FileDataset(path, x="y", y=None, classes={"y": [5, 7]}))["y"].tolist() == [
        1,
        0,
        1,
    ]
    with names(path, "'y'"):
        read_all(FileDataset(path, classes={"y": ["5", "8"]}))


@in_every({"arrow": TABLES["arrow"], "arrow stream": TABLES["arrow stream"]})
def test_a_dictionary_with_a_missing_value_lacks_values(tmp_path, form):
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", None, "b"]))
    path = form.saved(tmp_path, x=np.arange(3), y=values)
    with names(path, "lacks a value in 'y', the first in row 1"):
        FileDataset(path)


OTHER_CATEGORIES = {
    "dates": pa.array([1, 2], pa.date32()),
    "bytes": pa.array([b"a", b"b"]),
    "lists": pa.array([[1], [2]]),
}


@in_every({"arrow": TABLES["arrow"], "arrow stream": TABLES["arrow stream"]})
@pytest.mark.parametrize("kind", ["dates", "bytes", "lists"])
def test_categories_are_words_or_numbers(tmp_path, form, kind):
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), OTHER_CATEGORIES[kind])
    path = form.saved(tmp_path, x=np.arange(3), y=values)
    with names(path, "holds dictionary.* in 'y', which are no numbers"):
        read_all(FileDataset(path, index=tmp_path / "index.json"))


FRENCH = "x,y\n1,café\n2,b\n"
CONTENT = {
    "holds no samples": ("x,y\n", "ascii"),
    r"is no text in UTF-8, in 'y': give CsvReader\(encoding='latin-1'\)": (FRENCH, "latin-1"),
    r"is text in UTF-16: give CsvReader\(encoding='utf-16'\)": (FRENCH, "utf-16"),
}


@pytest.mark.parametrize("reason", CONTENT)
def test_text_that_is_not_understood_is_refused_with_the_reason(tmp_path, reason):
    text, encoding = CONTENT[reason]
    path = tmp_path / "f.csv"
    path.write_bytes(text.encode(encoding))
    with names(path, reason):
        FileDataset(path)


def test_csv_files_of_other_countries_are_read_with_options(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes("x;y\n1,5;café\n-2,25;b\n".encode("latin-1"))
    dataset = FileDataset(path, CsvReader(delimiter=";", decimal=",", encoding="latin-1"))
    arrays = read_all(dataset)
    assert (arrays["x"].tolist(), arrays["y"].tolist(), dataset.classes) == (
        [1.5, -2.25],
        [1, 0],
        {"y": ("b", "café")},
    )
    path.write_bytes("x,y\n1.5,café\n".encode("utf-16"))
    assert FileDataset(path, CsvReader(encoding="utf-16")).classes == {"y": ("café",)}


def test_feather_of_version_1_is_named(tmp_path):
    path = tmp_path / "f.feather"
    path.write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with names(
        path, ("is a file of Feather's version 1: write it anew with pyarrow.feather.write_feather")
    ):
        FileDataset(path)
