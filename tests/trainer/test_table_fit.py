"""Fits that read tables and images: the bits of fits from memory, on every engine and resumed."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, FileDataset
from compss_train.callbacks import Checkpoint
from compss_train.data.order import RowRange
from compss_train.data.readers import ImageFolderReader
from compss_train.training import checkpoints as storage
from tests.data.readers.formats import in_every
from tests.data.readers.table_files import TABLES, TYPED, lists
from tests.helpers.file_fits import POOLS
from tests.helpers.models import ADAM, assert_same_bits

ROWS = 20
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = np.arange(ROWS) % 3
KINDS = np.array(["ant", "bee", "cow"], object)[Y]
NOTE = "ignore:.*the dtype of the network's parameters:UserWarning"
FIT = {"num_epochs": 2, "batch_size": 4, "progress": False}


def saved(form, folder, name="f", kinds=KINDS):
    return form.saved(folder, name, a=X[:, 0], b=X[:, 1], c=X[:, 2], kind=kinds)


def table(form, folder, **options):
    return FileDataset(saved(form, folder), x=["a", "b", "c"], y="kind", **options)


def trainer_of(engine="serial", net=None, workers=2):
    torch.manual_seed(0)
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(
        net or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)),
        ADAM,
        "cross_entropy",
        "accuracy",
    )
    return trainer


def in_blocks(sizes, dtype=np.float32):
    cuts = np.cumsum(sizes)[:-1]
    return tuple(
        BlockedTensor([[part] for part in np.split(array, cuts)]) for array in (X.astype(dtype), Y)
    )


@pytest.mark.filterwarnings(NOTE, "ignore:there are too few Parquet")
@in_every(TABLES)
def test_a_table_trains_to_the_bits_of_arrays(tmp_path, form):
    files = table(form, tmp_path).cut(2)  # of CSV, ranges of rows
    from_files = trainer_of()
    from_memory = trainer_of()
    with pytest.warns(
        UserWarning, match=r"^float64 becomes float32, the dtype of the network's parameters"
    ):
        result = from_files.fit(files, **FIT)
    assert_same_bits(result, from_memory.fit(*in_blocks(files.sizes), **FIT))
    assert from_files.evaluate(files) == from_memory.evaluate(*in_blocks(files.sizes))
    x, _ = in_blocks(files.sizes)  # kernels for other numbers of rows may round differently
    np.testing.assert_array_equal(from_files.predict(files), from_memory.predict(x))


@pytest.mark.parametrize("options", [{}, POOLS], ids=["blocks", "partial"])
def test_a_resumed_fit_has_the_bits_of_a_whole_one(tmp_path, engine, options):
    """On every engine; a network of float64 gets float64 without a note."""
    files = table(TABLES["parquet"], tmp_path)

    def double(engine="serial"):
        torch.manual_seed(0)
        return trainer_of(engine, net=nn.Linear(3, 3).double())

    whole = double()
    resumed = double(engine)
    expected = whole.fit(files, **FIT, **options)
    saving = {**FIT, "num_epochs": 1, "callbacks": [Checkpoint(tmp_path / "checkpoints")]}
    double(engine).fit(files, **saving, **options)
    result = resumed.fit(files, **FIT, **options, resume=tmp_path / "checkpoints")
    assert_same_bits(result, expected)
    assert len(resumed.history) == 2
    if not options:
        assert_same_bits(
            double().fit(*in_blocks(TABLES["parquet"].blocks, np.float64), **FIT), expected
        )


@in_every(TYPED)
def test_lists_are_images(tmp_path, form):
    images = np.random.default_rng(1).integers(0, 256, (ROWS, 2, 3), np.uint8)
    path = form.saved(tmp_path, x=lists(images), y=Y)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    options = {"optimizer": ADAM, "loss": "cross_entropy", "transform": lambda x: x.float() / 255}
    results = []
    for data in ((FileDataset(path),), (in_parts(images, form.blocks), in_parts(Y, form.blocks))):
        torch.manual_seed(0)
        trainer = DistributedTrainer(2, engine="serial", seed=0)
        trainer.build(net, **options)
        results.append(trainer.fit(*data, **FIT))
    assert_same_bits(*results)


def in_parts(array, sizes):
    return BlockedTensor(
        [[part] for part in np.split(array.reshape(len(array), -1), np.cumsum(sizes)[:-1])]
    )


def test_data_with_other_classes_are_an_error(tmp_path):
    form = TABLES["parquet"]
    trainer = trainer_of()
    train = table(form, tmp_path)
    path = saved(form, tmp_path, "v", np.where(KINDS == "ant", "bee", KINDS))
    options = {"x": ["a", "b", "c"], "y": "kind"}
    other = FileDataset(path, **options)
    with pytest.raises(
        ValueError, match=r"the classes of y are \['bee', 'cow'\] in the validation data"
    ):
        trainer_of().fit(train, **FIT, validation_data=other)
    with pytest.warns(UserWarning, match="float64 becomes float32"):
        trainer.fit(
            train, **FIT, validation_data=FileDataset(path, **options, classes=train.classes)
        )
    with pytest.raises(
        ValueError, match=r"the classes of y are \['bee', 'cow'\] in the data, but \['ant', "
    ):
        trainer.evaluate(other)
    assert trainer.predict(other).shape == (ROWS, 3)  # targets are left out


def test_a_folder_of_images_gives_every_engine_the_same_bits(tmp_path, shared_local):
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        (folder := tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (3, 4), np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    results = []
    for engine in ("serial", shared_local):
        torch.manual_seed(0)
        trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
        trainer.build(net, ADAM, "cross_entropy", transform=as_floats)
        results.append(
            trainer.fit(FileDataset(tmp_path, ImageFolderReader(mode="L", rows=5)), **FIT, **POOLS)
        )
    assert_same_bits(*results)


def as_floats(x):
    return x.float() / 255


@pytest.mark.filterwarnings(NOTE)
def test_a_file_of_one_row_group_is_shared_sliced_and_split(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"a": X[:, 0], "b": X[:, 1], "row": np.arange(ROWS)}),
        tmp_path / "one.parquet",
    )
    files = FileDataset(tmp_path / "one.parquet", x=["a", "b"], y="row")

    def rows_of(dataset):
        parts = range(len(dataset.files))
        return [
            row
            for n in parts
            for row in dataset.part([n]).read(RowRange(n, 0, dataset.sizes[n]))["row"].tolist()
        ]

    assert rows_of(files[3:9][1:]) == [4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="none of the 20 rows are left"):
        files[20:]
    with pytest.warns(
        UserWarning, match=("smaller row_group_size, or more files with compss-train shard")
    ):
        training, validation = files.split(0.2, seed=0)
    assert len(validation) == 4
    assert sorted(rows_of(training) + rows_of(validation)) == list(range(ROWS))
    with DistributedTrainer(3, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(nn.Linear(2, ROWS), ADAM, "cross_entropy")
        trainer.fit(files, validation_data=validation, **FIT)
    assert sorted(worker["samples"] for worker in trainer.history[-1]["workers"]) == [6, 7, 7]


def test_a_folder_that_does_not_exist_says_so():
    with pytest.raises(ValueError, match=r"phtos/train does not exist; give a folder of images"):
        FileDataset("phtos/train")


OTHER_CODINGS = {
    "categories": lambda frame: frame.assign(
        kind=frame["kind"].cat.set_categories(["cow", "bee", "ant"])
    ),
    "columns": lambda frame: frame[["b", "a", "kind"]],
    "names": lambda frame: frame.rename(columns={"a": "z"}),
}


@pytest.mark.filterwarnings(NOTE, "ignore:'kind' in x are class codes")
@pytest.mark.parametrize("change", OTHER_CODINGS.values(), ids=OTHER_CODINGS)
def test_frames_whose_numbers_mean_other_things_are_an_error(change):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": pandas.Categorical(KINDS)})
    labels = pandas.Series(pandas.Categorical(KINDS))
    other = change(frame)
    message = "in the training data; give both the same columns"
    trainer = trainer_of()
    with pytest.raises(ValueError, match=message):
        trainer.fit(frame, labels, **FIT, validation_data=(other, labels))
    trainer.fit(frame, labels, **FIT, validation_data=(frame, labels))
    for use in (lambda: trainer.evaluate(other, labels), lambda: trainer.predict(other)):
        with pytest.raises(ValueError, match=message):
            use()
    with pytest.raises(ValueError, match=message):
        trainer.fit(other, labels, **FIT)
    with pytest.raises(ValueError, match="the classes of y are"):
        trainer.evaluate(frame, labels.cat.set_categories(["cow", "ant", "bee", "dog"]))
    trainer.predict(frame)
    trainer.build(nn.Linear(3, 3), ADAM, "cross_entropy")
    trainer.fit(other, labels, **FIT)


@pytest.mark.filterwarnings(NOTE, "ignore:'kind' in x are class codes")
@pytest.mark.parametrize("change", OTHER_CODINGS.values(), ids=OTHER_CODINGS)
def test_a_checkpoint_knows_what_the_numbers_of_its_data_meant(tmp_path, change):
    """Numbers that mean other things are an error in a later program, too, with classes of any
    type.
    """
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": pandas.Categorical(KINDS)})
    days = pandas.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    labels = pandas.Series(
        pandas.Categorical.from_codes(np.unique(KINDS, return_inverse=True)[1], days)
    )
    trainer_of().fit(frame, labels, **FIT, callbacks=[Checkpoint(tmp_path)])
    other = change(frame)
    resumed = {**FIT, "resume": tmp_path, "num_epochs": 3}
    with pytest.raises(
        ValueError,
        match=r"in this fit's data, but .* in those of .*/round-.*; give both the same col",
    ):
        trainer_of().fit(other, labels, **resumed)
    trainer = trainer_of()
    trainer.restore(tmp_path)
    for use in (lambda: trainer.predict(other), lambda: trainer.fit(other, labels, **FIT)):
        with pytest.raises(ValueError, match="in the training data; give both the same columns"):
            use()
    trainer.evaluate(frame, labels)
    trainer_of().fit(frame, labels, **resumed)
    path, content = storage.read_latest_checkpoint(tmp_path, warn=False)
    del content["setting"]["coding"]  # as an earlier version wrote it
    storage.write_checkpoint(tmp_path / "older" / path.name, content)
    trainer.restore(tmp_path / "older")
    trainer.predict(other)


@pytest.mark.filterwarnings(NOTE, "ignore:'kind' in x are class codes")
def test_parts_of_frames_of_polars_have_all_classes_of_an_enum():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"a": X[:, 0], "b": X[:, 1], "kind": polars.Series(KINDS, dtype=polars.Categorical)}
    )
    labels = np.unique(KINDS, return_inverse=True)[1]
    trainer = trainer_of()
    trainer.fit(frame, labels, **FIT)
    with pytest.raises(
        ValueError, match=r"the classes of 'kind' in x are .* with a polars\.Enum of all classes"
    ):
        trainer.predict(frame[:1])
    frame = frame.cast({"kind": polars.Enum(sorted({*KINDS}))})
    trainer.fit(frame, labels, **FIT)
    assert trainer.predict(frame[:1]).shape == (1, 3)


@pytest.mark.filterwarnings(NOTE)
@pytest.mark.parametrize("first", ["frame", "files"])
@pytest.mark.parametrize("second", ["frame", "files"])
def test_frames_and_files_are_compared_with_each_other(tmp_path, first, second):
    pandas = pytest.importorskip("pandas")

    def data(kind, name, columns, order=("ant", "bee", "cow")):
        if kind == "files":
            path = saved(TABLES["parquet"], tmp_path, name, KINDS)
            return (FileDataset(path, x=columns, y="kind", classes={"kind": list(order)}),)
        frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})[columns]
        return frame, pandas.Series(pandas.Categorical(KINDS, order))

    trainer = trainer_of()
    trainer.fit(*data(first, "f", ["a", "b", "c"]), **FIT)
    trainer.evaluate(*data(second, "g", ["a", "b", "c"]))
    with pytest.raises(
        ValueError,
        match=r"the columns of x are \['b', 'a', 'c'\] in the data, but \['a', 'b', 'c'\]",
    ):
        trainer.evaluate(*data(second, "h", ["b", "a", "c"]))
    with pytest.raises(
        ValueError, match=r"the classes of y are \['bee', 'ant', 'cow'\] in the data, but \['ant', "
    ):
        trainer.evaluate(*data(second, "i", ["a", "b", "c"], ["bee", "ant", "cow"]))
