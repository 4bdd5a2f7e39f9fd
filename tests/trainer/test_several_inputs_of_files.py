"""Several inputs and targets from files: dicts, tuples and lists, each part with its own dtype."""

import ast
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BlockedTensor,
    DistributedTrainer,
    FileDataset,
    PartialShuffleSampler,
    write_files,
)
from compss_train.data.readers import CsvReader
from compss_train.training.data_source import as_data_source
from tests.data.readers.formats import in_every
from tests.data.readers.table_files import TABLES
from tests.helpers.file_fits import POOLS
from tests.helpers.models import ADAM, assert_same_bits

ROWS = 20
NUMBERS = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
CODES = np.random.default_rng(1).integers(0, 4, (ROWS, 2))
COLUMNS = {
    "a": NUMBERS[:, 0],
    "b": NUMBERS[:, 1],
    "c": CODES[:, 0],
    "d": CODES[:, 1],
    "y": np.arange(ROWS) % 3,
}
FIT = {"num_epochs": 2, "batch_size": 4, "progress": False}


class Net(nn.Module):
    """Takes numbers, and integers for an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(8, 3)

    def forward(self, numbers, codes):
        return self.head(torch.cat([numbers, self.embedding(codes).flatten(1)], dim=1))


def fitted(*data, net=Net, loss="cross_entropy", **options):
    torch.manual_seed(0)
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(net(), ADAM, loss)
    trainer.fit(*data, **FIT, **options)
    return trainer


def in_blocks(files, *arrays):
    cuts = np.cumsum(files.sizes)[:-1]
    return [BlockedTensor([[part] for part in np.split(array, cuts)]) for array in arrays]


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
@in_every(TABLES)
def test_codes_beside_numbers_train_to_the_bits_of_arrays(tmp_path, form):
    path = form.saved(tmp_path, **COLUMNS)
    files = FileDataset(path, x={"numbers": ["a", "b"], "codes": ["c", "d"]}, y="y")
    floats = "float32" if form.typed else "float64"
    assert [str(field) for field in files.layout.values()] == [
        f"{floats} (2,)",
        "int64 (2,)",
        ("int64 ()"),
    ]
    numbers, codes, y = in_blocks(files, NUMBERS, CODES, COLUMNS["y"])
    x = {"numbers": numbers, "codes": codes}
    from_files = fitted(files)
    from_memory = fitted(x, y)
    assert_same_bits(from_files.get_parameters(), from_memory.get_parameters())
    np.testing.assert_array_equal(from_files.predict(files), from_memory.predict(x))
    assert from_files.evaluate(files) == from_memory.evaluate(x, y)
    in_pools = (
        fitted(files, **POOLS),
        fitted(FileDataset(path, x=(["a", "b"], ["c", "d"])), **POOLS),
    )
    assert_same_bits(*(trainer.get_parameters() for trainer in in_pools))


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
@in_every(TABLES)
def test_the_line_about_integers_says_what_to_write(tmp_path, form):
    """In CSV files, too, which do not say what integers are; one file has no decimals among its
    numbers.
    """
    kinds = {"kind": np.array(["ant", "bee"], object)[CODES[:, 0] % 2]}
    paths = [form.saved(tmp_path, str(number), **COLUMNS, **kinds) for number in range(2)]
    mixed = as_data_source(FileDataset(paths, x=["a", "b", "c", "d"], y="y"), None, 1)
    (line,) = mixed.remarks
    numbers = ["a", "b"]
    codes = ast.literal_eval(line.partition("'codes': ")[2].removesuffix("}"))
    files = FileDataset(paths, x={"numbers": numbers, "codes": codes})
    assert as_data_source(files, None, 1, floats=lambda: "float32").remarks == ()
    assert fitted(files).predict(files).shape == (2 * ROWS, 3)
    if form is TABLES["csv"]:
        paths.append(
            form.saved(tmp_path, "whole", **COLUMNS | kinds | {"a": CODES[:, 1], "b": CODES[:, 1]})
        )
    files = FileDataset(paths, x={"numbers": numbers, "codes": ["c", "kind"]})
    one = FileDataset(
        paths,
        keys=["x['numbers']"],
        x={"numbers": numbers, "codes": ["kind"]},
        classes=files.classes,
    )
    assert list(one.layout) == ["x['numbers']"]
    assert [files.layout[f"x['{part}']"].dtype.rstrip("3264") for part in ("numbers", "codes")] == [
        "float",
        "int",
    ]
    assert fitted(files).predict(files).shape == (len(paths) * ROWS, 3)


class TwoOutputs(Net):
    """Gives a dict of outputs."""

    def forward(self, numbers, codes):
        output = super().forward(numbers, codes)
        return {"left": output, "right": -output}


def loss_of_each(outputs, targets, reduction="mean"):
    return sum(
        nn.functional.cross_entropy(outputs[each], targets[each], reduction=reduction)
        for each in outputs
    )


def test_arrays_of_files_are_several_inputs_and_targets(tmp_path):
    arrays = {
        "numbers": NUMBERS,
        "codes": CODES,
        "y": COLUMNS["y"],
        "weight": np.linspace(0, 1, ROWS),
    }
    write_files(tmp_path, arrays, rows=10)
    targets = {"left": "y", "right": "y"}
    files = FileDataset(f"{tmp_path}/*.npz", x=("numbers", "codes"), y=targets, weight="weight")
    numbers, codes, y, weight = in_blocks(files, *arrays.values())
    options = {"net": TwoOutputs, "loss": loss_of_each}
    from_files = fitted(files, **options)
    from_memory = fitted((numbers, codes), {"left": y, "right": y}, sample_weight=weight, **options)
    assert_same_bits(from_files.get_parameters(), from_memory.get_parameters())


class Named(nn.Linear):
    """Takes its only input by name."""

    def forward(self, *, numbers):
        return super().forward(numbers)


def test_a_dict_of_one_input_is_a_keyword_also_if_it_is_its_own_target(tmp_path):
    write_files(tmp_path, {"numbers": NUMBERS}, rows=10)
    files = FileDataset(f"{tmp_path}/*.npz", x={"numbers": "numbers"}, y=None)
    trainer = fitted(
        files,
        net=lambda: Named(2, 2),
        loss=lambda output, target: (output - target["numbers"]).square().mean(),
    )
    assert trainer.predict(files).shape == (ROWS, 2)


def test_only_float64_columns_are_said_to_become_float32(tmp_path):
    path = TABLES["parquet"].saved(tmp_path, **COLUMNS, e=NUMBERS[:, 0].astype(np.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(FileDataset(path, x={"numbers": ["a", "b"], "codes": ["c", "d"]}))
        assert FileDataset(path, x=["a", "c"]).layout["x"].dtype == "float32"  # as torch promotes
    with pytest.warns(UserWarning, match="float64 becomes float32"):
        fitted(FileDataset(path, x={"numbers": ["e", "b"], "codes": ["c", "d"]}))


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
@in_every(TABLES)
def test_integers_and_codes_that_become_floats_are_named(tmp_path, form):
    """A list of columns is one array; codes are still integers alone, and columns whose dtypes are
    given.
    """
    pages = np.array(["one", "two"], object)[CODES[:, 0] % 2]
    path = form.saved(tmp_path, **COLUMNS, page=pages)
    index = tmp_path / "index.json"
    for _ in range(2):  # the second time from the index
        mixed = as_data_source(FileDataset(path, x=["a", "c", "page"], y="y", index=index), None, 1)
        assert [
            note for note in mixed.notes if "'page' in x are class codes, and become float" in note
        ]
        assert ["the integers of 'c' in x become float" in each for each in mixed.remarks] == [True]
    alone = FileDataset(path, x=["page"], y="y")
    assert alone.layout["x"].dtype == "int64"
    assert as_data_source(alone, None, 1).notes == as_data_source(alone, None, 1).remarks == ()
    if form is TABLES["csv"]:
        given = CsvReader(dtypes={"c": "int32", "d": "int32"})
        assert FileDataset(path, given, x=["c", "d", "page"], y="y").layout["x"].dtype == "int64"
        assert FileDataset(path, given, x=["c", "d"], y="y").layout["x"].dtype == "int32"
        assert fitted(
            FileDataset(path, given, x={"numbers": ["a", "b"], "codes": ["c", "d"]})
        ).history


def test_validation_data_and_predictions_name_the_part_with_other_classes(tmp_path):
    kinds = np.array(["ant", "bee", "cow"], object)[CODES % 3]
    table = TABLES["parquet"]
    files, others = (
        FileDataset(
            table.saved(tmp_path, name, **COLUMNS, one=one[:, 0], two=one[:, 1]),
            x={"numbers": ["a", "b"], "codes": ["one", "two"]},
        )
        for name, one in (("train", kinds), ("valid", np.where(kinds == "cow", "bee", kinds)))
    )
    with pytest.raises(
        ValueError,
        match=r"the classes of 'one' in x\['codes'\] are \['ant', 'bee'\] in the validation",
    ):
        fitted(files, validation_data=others)


@pytest.mark.parametrize(
    ("x", "error", "name"),
    [
        ({"numbers": 3}, TypeError, "x['numbers']=3"),
        ({"numbers": ["a", "a"]}, ValueError, "x['numbers']=['a', 'a']"),
        ({}, ValueError, "x={}"),
        (("a", "z"), ValueError, "has no array 'z' for x"),
    ],
)
def test_wrong_names_are_errors(tmp_path, x, error, name, raises):
    path = TABLES["parquet"].saved(tmp_path, **COLUMNS)
    with raises(error, name):
        fitted(FileDataset(path, keys=[*COLUMNS], x=x))


def test_a_sampler_yields_the_parts_by_their_places(tmp_path):
    path = TABLES["parquet"].saved(tmp_path, **COLUMNS)
    files = FileDataset(path, x={"numbers": ["a", "b"], "codes": ["c", "d"]}, y="y")
    (batch,) = PartialShuffleSampler(files, batch_size=ROWS, shuffle=False, num_replicas=1, rank=0)
    np.testing.assert_array_equal(batch["x['codes']"], CODES)
