from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from compss_train import BlockedTensor, Samples, write_files
from compss_train.cli.run_files import Errors, read_run_file
from compss_train.cli.run_files.data import Dataset, read_data, read_section, split_validation
from compss_train.data.order import RowRange
from compss_train.training.data_source import as_data_source

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20)


def pair():
    return X, Y


def triple():
    return X, Y, Y / 20


def many():
    return X, Y, Y, Y


INPUTS = {
    "dict": lambda pandas: ({"a": X, "b": Y}, Y),
    "tuple": lambda pandas: ((X, Y), Y, Y / 20),
    "nested": lambda pandas: ({"a": [X, Y], "b": Y}, {"c": Y}),
    "frame": lambda pandas: (categories(pandas), Y),
    "frame among inputs": lambda pandas: ({"a": X, "b": categories(pandas)}, pandas.Series(Y)),
    "frames of numbers": lambda pandas: (
        pandas.DataFrame(X),
        pandas.Series(Y),
        pandas.Series(Y / 20),
    ),
}


def categories(pandas):
    return pandas.DataFrame({"a": X[:, 0], "kind": pandas.Categorical(list("ab") * 10)})


def inputs(kind):
    return INPUTS[kind](pytest.importorskip("pandas"))


def only_categories():
    frame = categories(pytest.importorskip("pandas"))
    return frame, frame["kind"]


def data_set():
    return Samples([(x, y) for x, y in zip(X, Y, strict=True)])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    np.save("w.npy", Y / 20)
    np.savez("both.npz", x=X, y=Y, z=Y)
    np.savez("one.npz", images=X)
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, "both.pt")


FORMS = [
    {"x": "x.npy", "y": "y.npy"},
    {"x": "both.npz", "y": "both.npz"},
    {"x": "one.npz", "y": {"file": "both.npz", "key": "z"}},
    {"x": "both.pt", "y": "both.pt"},
    {"x": {"import": "numpy:load", "file": "x.npy"}, "y": {"file": "y.npy"}},
    {"x": f"import:{__name__}:X", "y": f"import:{__name__}:Y"},
    {"import": f"{__name__}:pair"},
]
WEIGHTED = [{"x": "x.npy", "y": "y.npy", "weight": "w.npy"}, {"import": f"{__name__}:triple"}]


def test_all_forms_of_naming_arrays_are_equivalent():
    for table in (*FORMS, *WEIGHTED):
        plain = read_section(table)
        cut = read_section({**table, "blocks": 4})
        weights = Y / 20 if table in WEIGHTED else None
        for part, blocked, expected in zip(plain, cut, (X, Y, weights), strict=True):
            if expected is None:
                assert part is blocked is None
            else:
                np.testing.assert_array_equal(part, expected)
                np.testing.assert_array_equal(blocked.collect(), expected)
                assert blocked.shape == (4, 1)


@pytest.mark.parametrize("kind", INPUTS)
def test_several_inputs_and_frames_are_cut_into_blocks(kind):
    table = {"import": f"{__name__}:inputs", "kind": kind}
    plain = read_section(table)
    cut = read_section({**table, "blocks": 4})
    whole = as_data_source(plain.x, plain.y, 1)
    source = as_data_source(cut.x, cut.y, 1)
    assert source.sizes == (5, 5, 5, 5)
    assert source.structure == whole.structure
    assert source.coding == (whole.coding if kind != "frames of numbers" else {})
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(source.columns[name].collect(), column.collect())
    parts = split_validation(cut, 0.25, seed=0)
    assert [as_data_source(part.x, part.y, 1).number_samples for part in parts] == [15, 5]
    assert len(as_data_source(parts[0].x, parts[0].y, 1).sizes) == 4


def test_files_are_a_data_set_with_its_options():
    write_files("train", {"a": X, "b": Y}, rows=6)
    options = {"index": "index.json", "threads": 3, "cache": "kept", "cache_bytes": 10_000}
    x, y, _ = read_section({"files": "train/*.npz", "x": "a", "y": "b", **options})
    assert (x.sizes, x.x, x.y, y) == ((6, 6, 6, 2), "a", "b", None)
    assert (x.threads, x.cache.max_bytes) == (3, 10_000)
    assert Path("index.json").exists()
    assert list(Path("kept").iterdir()) == [Path(x.cache.folder).relative_to(Path.cwd())]


TABLE = "id,a,b,kind\n0,1,2,{}\n1,3,4,{}\n2,5,6,{}\n"
VALIDATION = """
[data]
files = "train.csv"
x = ["a", "b"]
y = "kind"

[validation]
files = {files}
"""


@pytest.mark.parametrize("more", ["", 'y = "kind"\nclasses = { kind = ["ant", "bee", "cow"] }'])
@pytest.mark.parametrize("files", ['"validation.csv"', '["validation.csv"]'])
def test_validation_files_are_read_as_those_of_the_data(files, more):
    """Their columns and classes, of which they may lack some, unless the section says so itself."""
    pytest.importorskip("pyarrow")
    Path("train.csv").write_text(TABLE.format("ant", "bee", "cow"))
    Path("validation.csv").write_text(TABLE.format("bee", "bee", "cow"))
    Path("run.toml").write_text(VALIDATION.format(files=files) + more)
    errors = Errors()
    data, validation = read_data(read_run_file(Path("run.toml")), errors, num_workers=1, seed=0)
    errors.check(Path("run.toml"))
    assert validation.x.training_keys() == data.x.training_keys() == ("x", "kind")
    arrays = validation.x.part([0]).read(RowRange(0, 0, 3))
    assert arrays["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert arrays["kind"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, 'it names no samples; give files = "train/*.npz", or x = '),
        ({"y": "y.npy"}, "it names no samples"),
        ({"x": "none.npy"}, "none.npy: No such file or directory"),
        ({"x": "x.npy", "y": "none.npz"}, "none.npz"),
        ({"x": "x.txt"}, "files with the suffixes '.txt': give files of one format, .npz"),
        ({"x": 3}, "a block needs a first dimension"),
        ({"x": {"file": "both.npz", "keys": "x"}}, "x: unknown key keys; did you mean key?"),
        ({"x": {"file": "both.npz", "key": "a"}}, "both.npz has no array 'a'"),
        ({"x": "x.npy", "Y": "y.npy"}, "unknown key Y; did you mean y?"),
        ({"x": "x.npy", "blocks": 21}, "blocks=21 makes 21 blocks of 20 samples"),
        ({"x": "x.npy", "blocks": "many"}, "blocks='many': give an integer of at least 1"),
        ({"files": "x.npy", "blocks": 3}, "unknown key blocks"),
        (
            {"import": f"{__name__}:only_categories", "blocks": 3},
            (
                "blocks=3 cuts arrays, and x is a DataFrame with categories: leave blocks out, or "
                "give an array"
            ),
        ),
        (
            {"import": f"{__name__}:data_set", "blocks": 3},
            (
                "blocks=3 cuts arrays, and x is a Samples: leave blocks out; Samples(dataset, "
                "blocks=...) cuts a data"
            ),
        ),
        ({"files": "none/*.npz"}, "files='none/*.npz': no files found"),
        ({"files": "x.npy", "on_bad_file": "shout"}, "on_bad_file='shout': choose one of"),
        (
            {"import": f"{__name__}:many"},
            ("many returned 4 values; give x and y, x alone, or x, y and weights"),
        ),
        ({"import": f"{__name__}:pair", "n": 3}, "pair() got an unexpected keyword argument 'n'"),
    ],
    ids=str,
)
def test_invalid_data_are_an_error(table, message):
    errors = Errors()
    with errors.collect("[data]"):
        data = read_section(table)
        as_data_source(data.x, data.y, blocks=1)
    assert message in errors.messages[0]


@given(st.integers(2, 50), st.floats(0.02, 0.98), st.integers(0, 5), st.booleans())
def test_a_split_keeps_every_sample_with_its_target_and_weight(number, fraction, seed, tensors):
    x = np.arange(number) * 2
    y = np.arange(number)
    weight = np.arange(number) / 4
    dataset = (
        Dataset(torch.from_numpy(x), torch.from_numpy(y), weight)
        if tensors
        else Dataset(x, y, weight)
    )
    count = round(number * fraction)
    if not 0 < count < number:
        with pytest.raises(ValueError, match="give another fraction"):
            split_validation(dataset, fraction, seed)
        return
    training, validation = split_validation(dataset, fraction, seed)
    assert len(validation.x) == count
    assert sorted([*training.y.tolist(), *validation.y.tolist()]) == y.tolist()
    for part in (training, validation):
        assert part.x.tolist() == [2 * n for n in part.y.tolist()]
        assert part.weight.tolist() == [n / 4 for n in part.y.tolist()]


def test_the_seed_chooses_validation_samples_and_blocks_stay_as_many():
    chosen = [
        split_validation(Dataset(np.arange(100)), 0.3, seed)[1].x.tolist() for seed in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    dataset = Dataset(BlockedTensor.from_array(np.arange(40), (4, 1)))
    training, validation = split_validation(dataset, 0.25, 0)
    assert (training.x.shape, training.x.number_samples, training.y) == ((4, 1), 30, None)
    assert sorted([*training.x.collect(), *validation.x]) == list(range(40))


@pytest.mark.parametrize(
    "y", [3, np.array(3), iter(range(20))], ids=["number", "array", "iterator"]
)
def test_a_split_names_what_has_no_samples(y):
    with pytest.raises((TypeError, ValueError), match=r"this value is a scalar|iterator"):
        split_validation(Dataset(X, y), 0.25, 0)


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"n": np.arange(20.0), "kind": pandas.Categorical(["a", "b"] * 10)})


@pytest.mark.parametrize(
    ("make", "number_of"),
    [
        (frame, lambda x: x["n"]),
        (lambda: {"p": np.arange(20), "q": frame()}, lambda x: x["q"]["n"]),
        (lambda: (BlockedTensor.from_array(Y, 4), X), lambda x: x[0]),
        (lambda: [[float(n)] * (1 + n % 3) for n in range(20)], lambda x: [each[0] for each in x]),
    ],
    ids=["frame", "dict", "tuple", "sequences"],
)
def test_a_split_keeps_what_a_fit_takes(make, number_of):
    """Frames with their columns and categories, several inputs, and sequences that differ in
    length.
    """
    training, validation = split_validation(Dataset(make(), Y), 0.25, 0)
    whole = as_data_source(make(), Y, 2)
    for part, size in ((training, 15), (validation, 5)):
        assert [int(each) for each in number_of(part.x)] == part.y.tolist()
        source = as_data_source(part.x, part.y, 2)
        assert (source.number_samples, source.structure, source.coding) == (
            size,
            whole.structure,
            whole.coding,
        )


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, number):
        return np.float32(number), number % 2


def hugging_face():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(
        {"x": [float(n) for n in range(10)], "label": [n % 2 for n in range(10)]}
    )


@pytest.mark.parametrize(
    "make",
    [
        Pairs,
        lambda: Samples(Pairs(), blocks=2),
        lambda: DataLoader(Pairs(), batch_size=3),
        hugging_face,
    ],
)
def test_a_split_data_set_keeps_samples_with_their_weights(make):
    training, validation = split_validation(Dataset(make(), weight=np.arange(10) / 4), 0.3, 0)
    found = []
    for part, size in ((training, 7), (validation, 3)):
        reader = part.x.reader(1, "float32")
        read = reader.read(np.arange(size), 0, 0, lambda _: 0, None)
        assert read.y.tolist() == [n % 2 for n in read.x.tolist()]
        assert part.weight.tolist() == [n / 4 for n in read.x.tolist()]
        found += read.x.tolist()
    assert sorted(found) == list(range(10))


def test_a_stratified_split_has_each_classs_share(raises):
    y = np.repeat([0, 1, 2], [60, 30, 10])
    x = np.arange(100)
    for classes in (y, y[:, None]):
        training, validation = split_validation(Dataset(x, classes), 0.2, 0, stratify=True)
        assert sorted([*training.x, *validation.x]) == x.tolist()
        assert np.bincount(y[validation.x]).tolist() == [12, 6, 2]
        np.testing.assert_array_equal(validation.y, classes[validation.x])
    for values in (y.astype(np.float32), np.stack([y, y], axis=1), None):
        with raises(ValueError, "stratify = true needs y"):
            split_validation(Dataset(x, values), 0.2, 0, stratify=True)
