import csv
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import compss_train
from compss_train import DistributedTrainer, FileDataset, PartialShuffleSampler, write_files
from compss_train.cli import main
from compss_train.cli.prediction_tables import table_of_probabilities
from compss_train.engines.calls import intra_op_threads
from compss_train.model import parameters
from tests.cli.user_objects import data, history
from tests.helpers.models import SGD, mlp
from tests.helpers.tolerances import loss_error, output_error


def parsed(done):
    return json.loads(done.out)


def test_what_is_no_number_is_printed_as_text(fitted, command):
    np.savez("nan.npz", x=np.full((4, 6), np.nan, np.float32), y=np.zeros(4, np.int64))
    printed = command("evaluate", fitted, "--json", "--data", "nan.npz").out
    assert json.loads(printed, parse_constant=pytest.fail)["loss"] == "NaN"


def test_the_default_data_are_the_runs_validation_data(fitted, command):
    result = parsed(command("evaluate", fitted, "--json"))
    record = history(fitted)[-1]
    assert result == {name: record[f"val_{name}"] for name in ("loss", "accuracy")}
    line = f"loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}\n"
    assert command("evaluate", fitted).out == line
    (fitted / "parameters.safetensors").unlink()
    assert command("evaluate", fitted).out == line  # of the last checkpoint, as after a kill


def test_other_data_are_read_from_files(fitted, command, tmp_path):
    x, y = data(40)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.savez("both.npz", x=x, y=y)
    torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, "both.pt")
    write_files("many", {"x": x, "y": y}, rows=9)
    results = [
        parsed(command("evaluate", fitted, "--json", "--data", *files))
        for files in (["x.npy", "y.npy"], ["both.npz"], ["both.pt"], ["many/*.npz"])
    ]
    for result in results:
        assert result == pytest.approx(results[0], abs=loss_error(np.float32, 40))


ARRAYS = """x = { file = "train.npz", key = "images" }
y = { file = "train.npz", key = "labels" }"""


def test_array_names_are_the_keys_of_the_training_data(run_file, command):
    x, y = data(40)
    for name in ("train.npz", "test.npz"):
        np.savez(name, images=x, labels=y)
    np.savez("both.npz", a=x, b=y)
    np.savez("alone.npz", x)
    np.save("x.npy", x)
    run_file.write_text(
        run_file.read_text().replace('import = "tests.cli.user_objects:data"', ARRAYS)
    )
    command("fit", run_file)
    trained = parsed(command("evaluate", "runs/small", "--json", "--data", "test.npz"))
    others = ("--set", "data.x.key=a", "--set", "data.y.key=b")
    assert trained == parsed(
        command("evaluate", "runs/small", "--json", "--data", "both.npz", *others)
    )
    for samples in ("test.npz", "alone.npz", "x.npy"):
        command("predict", "runs/small", "--input", samples, "--output", f"of-{samples}.npy")
        assert np.array_equal(np.load(f"of-{samples}.npy"), np.load("of-test.npz.npy"))
    for wrong in ("both.npz", "alone.npz"):
        output = command("evaluate", "runs/small", "--data", wrong, code=2).err
        assert f"{wrong} has no array 'images' for x" in output
        assert (
            "For a run: --set data.x=NAME where [data] has files, --set data.x.key=NAME where"
            in output
        )


def test_a_folder_without_parameters_is_an_error(run_file, fitted, command, tmp_path):
    for path in (fitted / "parameters.safetensors", *(fitted / "checkpoints").glob("*/*")):
        path.unlink()
    assert "checkpoint" in command("evaluate", fitted, code=2).err
    command("fit", run_file, "--output", "bare", settings=["output.checkpoint=false"])
    assert "bare has no checkpoints;" in command("evaluate", "bare", "--best", code=2).err


def test_outputs_equal_the_trainers_in_order(fitted, command):
    x, y = data(40)
    with DistributedTrainer(2, engine="serial", seed=3, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy", "accuracy")
        trainer.set_parameters(parameters.load(fitted / "parameters.safetensors"))
        expected = trainer.predict(x)
        rounding = output_error(trainer.model(), x)
    np.save("x.npy", x)
    write_files("many", {"x": x, "y": y}, rows=9)
    output = command("predict", fitted, "--input", "x.npy", "--output", "out.npy").out
    assert output == "40 samples, float32 (40, 3), in out.npy\n"
    outputs = np.load("out.npy")
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=rounding)
    command("predict", fitted, "--input", "many/*.npz", "--output", "out.npz")
    np.testing.assert_allclose(np.load("out.npz")["output"], expected, rtol=0, atol=rounding)
    command("predict", fitted, "--input", "x.npy", "--output", "classes.npy", "--classes")
    assert np.array_equal(np.load("classes.npy"), outputs.argmax(axis=1))


def test_one_image_is_predicted_with_the_classes_of_the_run(run_file, command, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        folder = tmp_path / "pets" / ("cat", "dog", "newt")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        image.new("L", (3, 2), 20 * number).save(folder / f"{number}.png")
    shutil.copy(tmp_path / "pets" / "dog" / "4.png", tmp_path / "photo.png")
    image.new("L", (8, 8)).save("other.png")
    text = run_file.read_text().replace(
        'import = "tests.cli.user_objects:data"\nblocks = 4', "FILES"
    )
    reader = '{ import = "compss_train.data.readers:ImageFolderReader", mode = "L", size = [2, 3] }'
    text = text.replace("FILES", f'files = "pets"\nreader = {reader}').replace(
        "helpers.models:mlp", "cli.user_objects:pets"
    )
    run_file.write_text(text)
    command("fit", run_file, settings=["build.transform=import:tests.cli.user_objects:to_float"])
    command("predict", "runs/small", "--input", "pets", "--output", "all.csv")
    (header, *rows) = csv.reader(Path("all.csv").read_text().splitlines())
    assert header == ["sample", "class", "cat", "dog", "newt"]
    assert sorted(row[0] for row in rows) == sorted(map(str, (tmp_path / "pets").glob("*/*.png")))
    (known,) = (row for row in rows if row[0].endswith("dog/4.png"))
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy("photo.png", flat / "b.png")
    shutil.copy(tmp_path / "pets" / "cat" / "3.png", flat / "a.png")
    (flat / "notes.txt").write_text("no image")
    command("predict", "runs/small", "--input", "flat", "--output", "flat.csv")
    (_, *flat_rows) = csv.reader(Path("flat.csv").read_text().splitlines())
    assert [row[0] for row in flat_rows] == [str(flat / "a.png"), str(flat / "b.png")]
    assert flat_rows[1][1:] == known[1:]
    shutil.rmtree("pets")
    command("predict", "runs/small", "--input", "photo.png", "other.png", "--output", "two.csv")
    photo = Path("two.csv").read_text().splitlines()[1].split(",")
    assert photo[0] == str(tmp_path / "photo.png")
    rounding = output_error(compss_train.load("runs/small"), np.full((1, 1, 2, 3), 80, np.float32))
    assert photo[1] == known[1]
    probabilities = [float(value) for value in known[2:]]
    assert [float(value) for value in photo[2:]] == pytest.approx(probabilities, abs=rounding)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    command("predict", "runs/small", "--input", "photo.png", "--output", "class.csv", "--classes")
    best = header[2 + int(np.argmax(probabilities))]
    assert best == known[1]
    assert Path("class.csv").read_text() == f"sample,class\n{tmp_path / 'photo.png'},{best}\n"
    np.save("x.npy", np.zeros((2, 1, 2, 3), np.float32))
    command(
        "predict",
        "runs/small",
        "--input",
        "x.npy",
        "--output",
        "x.csv",
        settings=["data.reader=none"],
    )
    assert Path("x.csv").read_text().splitlines()[2].startswith(f"{tmp_path / 'x.npy'}[1],")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_are_predicted_by_columns_with_ids(fitted, command, suffix):
    """Also for a run whose data are made by a function, which names no columns."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    x, _ = data(40)
    np.save("x.npy", x)
    ids = [f"house {number}" for number in range(40)]
    table = pyarrow.table({**{f"c{n}": x[:, n] for n in range(6)}, "id": ids})
    if suffix == "csv":
        pytest.importorskip("pyarrow.csv").write_csv(table, "new.csv")
    else:
        parquet.write_table(table, "new.parquet", row_group_size=7)
    given = ("predict", fitted, "--input", f"new.{suffix}", "--x", "c0,c1,c2,c3,c4,c5")
    command(*given, "--ids", "id", "--output", "out.parquet", "--outputs")
    command("predict", fitted, "--input", "x.npy", "--output", "out.npy")
    written = parquet.read_table("out.parquet")
    assert written.column_names == ["id", "output 0", "output 1", "output 2"]
    assert written["id"].to_pylist() == ids
    outputs = np.stack([written[name].to_numpy() for name in written.column_names[1:]], axis=1)
    rounding = output_error(compss_train.load(fitted), x)
    np.testing.assert_allclose(outputs, np.load("out.npy"), rtol=0, atol=rounding)
    command(*given, "--output", "out.csv", "--ids", "id", "--classes")
    rows = list(csv.reader(Path("out.csv").read_text().splitlines()))
    assert rows[1:] == [
        [name, str(each)] for name, each in zip(ids, outputs.argmax(axis=1), strict=True)
    ]
    named = pyarrow.table(
        {"output 0": ids, **{f"c{n}": x[:, n] for n in range(6)}, "y": data(40)[1]}
    )
    parquet.write_table(named, "named.parquet")
    same = ("--input", "named.parquet", *given[4:], "--ids", "output 0", "--output", "a.csv")
    same = (*same, "--outputs")
    assert "a column of the outputs has this name" in command("predict", fitted, *same, code=2).err
    assert "accuracy" in command("evaluate", fitted, "--data", "named.parquet", *given[4:]).out
    assert "has no column 'z'" in command(*given[:-1], "c0,z", "--output", "a.csv", code=2).err
    assert "'street'; it has" in command(*given, "--ids", "street", "--output", "a.csv", code=2).err
    assert (
        "only .csv and .parquet files"
        in command(*given, "--ids", "id", "--output", "a.npy", code=2).err
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_outputs_are_named_by_classes_that_are_numbers(fitted, command, suffix):
    np.save("x.npy", data(4)[0])
    classes = ["data.classes={y=[3, 5, 8]}"]
    command("predict", fitted, "--input", "x.npy", "--output", f"out.{suffix}", settings=classes)
    if suffix == "csv":
        header = Path("out.csv").read_text().splitlines()[0].split(",")
    else:
        header = pytest.importorskip("pyarrow.parquet").read_table("out.parquet").column_names
    assert header == ["sample", "class", "3", "5", "8"]


def test_strings_of_a_table_have_the_codes_of_training_or_are_an_error(fitted, command):
    """The run's data are made by a function, and its file says nothing of what their numbers
    mean.
    """
    x = data(4)[0]
    rows = [
        ",".join([*map(str, row[:5]), kind]) for row, kind in zip(x.tolist(), "bccb", strict=True)
    ]
    Path("new.csv").write_text("\n".join(["c0,c1,c2,c3,c4,kind", *rows]))
    given = (
        "predict",
        fitted,
        "--input",
        "new.csv",
        "--x",
        "c0,c1,c2,c3,c4,kind",
        "--output",
        "out.npy",
    )
    assert "'kind'" in command(*given, code=2).err
    command(*given, settings=["data.classes={kind=['a', 'b', 'c']}"])
    np.save("x.npy", np.column_stack([x[:, :5], [1, 2, 2, 1]]).astype(np.float32))
    coded = np.load("out.npy")
    command("predict", fitted, "--input", "x.npy", "--output", "out.npy")
    np.testing.assert_array_equal(coded, np.load("out.npy"))


def test_an_argument_of_a_function_may_be_called_classes(run_file, command):
    import_ = 'import = "tests.cli.user_objects:data"'
    run_file.write_text(
        run_file.read_text().replace(
            import_, ('import = "tests.cli.user_objects:labelled"\nclasses = 3')
        )
    )
    command("fit", run_file)
    np.save("x.npy", data(4)[0])
    command("predict", "runs/small", "--input", "x.npy", "--output", "out.csv")
    assert Path("out.csv").read_text().startswith("sample,class,class 0,class 1,class 2\n")


def test_only_classes_are_named(run_file, command):
    """Not the outputs of a network with a single one, and not those that are more than the
    classes.
    """
    text = run_file.read_text().replace("helpers.models:mlp", "cli.user_objects:single")
    run_file.write_text(text.replace('"cross_entropy"', '"mse"').replace('"accuracy"', '"mae"'))
    command("fit", run_file)
    np.save("x.npy", data(4)[0])
    given = ("predict", "runs/small", "--input", "x.npy", "--output")
    command(*given, "out.npy")
    command(*given, "out.csv", settings=["data.classes={y=['no', 'yes']}"])
    (header, *rows) = csv.reader(Path("out.csv").read_text().splitlines())
    assert (header, [np.float32(row[1]) for row in rows]) == (
        ["sample", "output 0"],
        np.load("out.npy").tolist(),
    )


def test_outputs_without_a_class_have_their_number(fitted, command):
    np.save("x.npy", data(40)[0])
    given = ("predict", fitted, "--input", "x.npy", "--classes", "--output")
    command(*given, "out.npy")
    command(*given, "out.csv", settings=["data.classes={y=['no', 'yes']}"])
    rows = list(csv.reader(Path("out.csv").read_text().splitlines()))[1:]
    assert [row[1] for row in rows] == [
        ["no", "yes", "output 2"][number] for number in np.load("out.npy")
    ]
    assert "output 2" in {row[1] for row in rows}


def test_outputs_that_are_no_array_are_not_written(run_file, command):
    named = 'import = "tests.cli.user_objects:Named"\nin_features = 6\nout_features = 3'
    text = run_file.read_text().replace('import = "tests.helpers.models:mlp"', named)
    run_file.write_text(text.replace('metric = "accuracy"', ""))
    command("fit", run_file)
    np.save("x.npy", data(4)[0])
    printed = command(
        "predict", "runs/small", "--input", "x.npy", "--output", "out.npy", code=2
    ).err
    assert "the outputs are a dict of 'logits'" in printed
    assert not Path("out.npy").exists()


def test_a_single_output_is_no_class(run_file, command):
    linear = 'import = "torch.nn:Linear"\nin_features = 6\nout_features = 1'
    text = run_file.read_text().replace('import = "tests.helpers.models:mlp"', linear)
    run_file.write_text(text.replace('"cross_entropy"', '"mse"').replace('"accuracy"', '"mae"'))
    command("fit", run_file)
    np.save("x.npy", data(4)[0])
    given = ("predict", "runs/small", "--input", "x.npy", "--output", "out.npy")
    assert (
        "--classes: the outputs have the shape (4, 1)" in command(*given, "--classes", code=2).err
    )
    assert not Path("out.npy").exists()
    assert "(4, 1), in out.npy" in command(*given).out


def test_programs_load_a_run_a_file_or_a_checkpoint(fitted, command, tmp_path, capsys):
    x, _ = data(20)
    np.save("x.npy", x)
    command("predict", fitted, "--input", "x.npy", "--output", "y.npy")
    before = torch.get_rng_state()
    loaded = [compss_train.load(fitted)]
    assert (
        "runs tests.cli.user_objects:data, tests.helpers.models:mlp (--trust to hide"
        in capsys.readouterr().err
    )
    loaded += [compss_train.load(fitted, best=True, trust=True)]
    assert capsys.readouterr().err == ""
    assert torch.equal(torch.get_rng_state(), before)
    loaded += [
        compss_train.load(each, mlp())
        for each in (fitted / "parameters.safetensors", fitted / "checkpoints")
    ]
    with intra_op_threads(1):  # as the run has
        for net in loaded:
            assert not net.training
            np.testing.assert_array_equal(
                net(torch.from_numpy(x)).detach().numpy(), np.load("y.npy")
            )
    with pytest.raises(TypeError, match=r"load\('parameters.safetensors'\) needs the network"):
        compss_train.load(fitted / "parameters.safetensors")
    with pytest.raises(ValueError, match="are missing in the parameters"):
        compss_train.load(fitted / "parameters.safetensors", torch.nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        compss_train.load(tmp_path, mlp())


COMMANDS = {"evaluate": [], "predict": ["--input", "x.npy", "--output", "y.npy"]}


def test_modules_are_named_before_they_are_imported(fitted, command):
    said = command("evaluate", fitted, "--json").err
    assert (
        "runs tests.cli.user_objects:data, tests.helpers.models:mlp (--trust to hide this)" in said
    )
    assert command("evaluate", fitted, "--trust", "--json").err == ""
    file = fitted / "config.toml"
    file.write_text(file.read_text().replace("tests.helpers.models:mlp", "no_such_module:mlp"))
    assert "runs no_such_module:mlp, tests.cli" in command("evaluate", fitted, code=2).err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_another_user_is_an_error_unless_trusted(fitted, command, monkeypatch, name):
    monkeypatch.setattr(os, "getuid", lambda: os.stat(fitted).st_uid + 1)
    monkeypatch.setattr("compss_train.cli.run_files.ADMINISTRATOR", -1)
    file = fitted / "config.toml"
    file.write_text(file.read_text().replace("tests.helpers.models:mlp", "no_such_module:mlp"))
    np.save("x.npy", np.zeros((4, 5), np.float32))
    arguments = [name, fitted, *COMMANDS[name]]
    error = command(*arguments, code=2).err
    assert "belongs to" in error
    assert "and config.toml runs no_such_module:mlp, tests.cli.user_objects:data" in error
    assert "No module named 'no_such_module'" not in error
    assert "No module named 'no_such_module'" in command(*arguments, "--trust", code=2).err


@pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0, reason=("only the administrator can give files away")
)
@pytest.mark.parametrize("place", ["nets.py", "nets/layers.py", "__pycache__/nets.cpython-311.pyc"])
def test_a_module_of_another_user_beside_the_file_is_an_error(fitted, command, tmp_path, place):
    file = fitted / "config.toml"
    path = tmp_path / place
    file.write_text(file.read_text().replace("tests.helpers.models:mlp", "nets:mlp"))
    for made in (tmp_path / "nets.py", path):
        made.parent.mkdir(exist_ok=True)
        made.touch()
    os.chown(path, 12345, -1)
    assert (
        f"{path} belongs to user 12345, and config.toml runs nets:mlp"
        in command("evaluate", fitted, code=2).err
    )


def test_a_weight_that_has_changed_is_an_error(fitted, command):
    path = fitted / "parameters.safetensors"
    other = Path("other.safetensors")
    arrays = parameters.load(path)
    parameters.save(other, {name: array + 1 for name, array in arrays.items()})
    other.replace(path)
    said = command("evaluate", fitted, code=2).err
    assert (
        "parameters.safetensors does not hold the parameters whose SHA-256 is in run.json" in said
    )
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    for name, arguments in COMMANDS.items():
        if name != "predict":
            assert "arrays do not have the SHA-256" in command(name, fitted, *arguments, code=2).err


def test_a_run_is_complete_when_its_parameters_are_saved(run_file, command, monkeypatch):
    def no_space(path, arrays):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(parameters, "save", no_space)
    assert "No space left on device" in command("fit", run_file, code=1).err
    assert json.loads(Path("runs/small/run.json").read_text())["state"] != "complete"


@pytest.fixture
def arrays(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(60).reshape(30, 2))
    np.save(tmp_path / "labels.npy", np.arange(30))
    return [f"x={tmp_path / 'images.npy'}", f"y={tmp_path / 'labels.npy'}"]


def labels(dataset):
    batches = list(PartialShuffleSampler(dataset, shuffle=False, batch_size=7))
    assert all((batch["x"][:, 0] == 2 * batch["y"]).all() for batch in batches)
    return np.concatenate([np.asarray(batch["y"]) for batch in batches]).tolist()


@pytest.mark.parametrize("format", ["npz", "npz-compressed", "pt", "h5"])
def test_shard_writes_arrays_as_files_and_files_as_other_files(arrays, tmp_path, capsys, format):
    first = str(tmp_path / "first")
    second = str(tmp_path / "second")
    assert main(["shard", *arrays, "--rows", "8", "--output", first]) == 0
    assert f"4 files in {first}" in capsys.readouterr().out
    files = FileDataset(f"{first}/*.npz")
    assert [Path(name).name for name in files.files] == [
        f"part-{number:06d}.npz" for number in range(4)
    ]
    assert files.sizes == (8, 8, 8, 6)
    assert labels(files) == list(range(30))
    assert (
        main(["shard", *files.files, "--rows", "20", "--output", second, "--format", format]) == 0
    )
    others = FileDataset(f"{second}/*")
    assert others.sizes == (20, 10)
    assert labels(others) == list(range(30))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_shard_writes_strings_of_columns_that_are_named_as_classes(tmp_path, capsys, suffix):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    kinds = ["oak", "elm", "oak", "ash", "oak"]
    write = {"csv": pa.csv.write_csv, "parquet": pa.parquet.write_table}[suffix]
    for number, names in enumerate((kinds[:3], kinds[3:])):
        columns = {
            "x": [float(len(name)) for name in names],
            "y": names,
            "note": names,
            "day": range(len(names)),
        }
        write(pa.table(columns), tmp_path / f"{number}.{suffix}")
    command = ["shard", f"{tmp_path}/*.{suffix}", "--rows", "4", "--output", str(tmp_path / "out")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert (
        f"0.{suffix} holds no numbers in 'note': name the arrays or columns to write with --keys"
    ) in error
    assert not list(tmp_path.glob("out/*"))
    assert main([*command, "--keys", "y,note"]) == 0
    lines = [
        f"2 files in {tmp_path}/out",
        *(f"classes of {name}: 0 is ash, 1 is elm, 2 is oak" for name in ("y", "note")),
    ]
    assert capsys.readouterr().out.splitlines() == lines
    (batch,) = PartialShuffleSampler(
        FileDataset(f"{tmp_path}/out/*.npz"), shuffle=False, batch_size=5
    )
    assert {name: array.tolist() for name, array in batch.items()} == {
        "y": [2, 1, 2, 0, 2],
        "note": [2, 1, 2, 0, 2],
    }


def test_tables_have_classes_and_probabilities(fitted, command):
    np.save("x.npy", data(20)[0])
    given = ("predict", fitted, "--input", "x.npy", "--output")
    command(*given, "out.npy")
    command(*given, "probabilities.npy", "--probabilities")
    outputs = np.load("out.npy")
    probabilities = np.load("probabilities.npy")
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    expected = shifted / shifted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5)
    command(*given, "out.csv", settings=["data.classes={y=['no', 'yes', 'may be']}"])
    (header, *rows) = csv.reader(Path("out.csv").read_text().splitlines())
    assert header == ["sample", "class", "no", "yes", "may be"]
    assert [row[1] for row in rows] == [header[2 + number] for number in outputs.argmax(axis=1)]
    written = [[float(value) for value in row[2:]] for row in rows]
    np.testing.assert_allclose(written, probabilities, rtol=1e-6)
    command(*given, "out.csv", "--outputs")
    (header, *rows) = csv.reader(Path("out.csv").read_text().splitlines())
    assert header == ["sample", "output 0", "output 1", "output 2"]


@pytest.mark.parametrize("outputs", [1, 3])
def test_probabilities_of_a_binary_cross_entropy(outputs):
    probabilities = np.random.default_rng(0).random((5, outputs)).astype(np.float32)
    table = table_of_probabilities(probabilities, ("no", "yes"), binary=True)
    if outputs == 3:  # labels, of which a sample may have several
        assert [*table] == ["class 0", "class 1", "class 2"]
        return
    assert [*table] == ["class", "yes"]
    assert [*table["class"]] == ["yes" if p > 0.5 else "no" for p in probabilities[:, 0]]


def test_averages_are_used_if_the_run_kept_one(run_file, command):
    np.save("x.npy", data(4)[0])
    given = ("predict", "runs/small", "--input", "x.npy", "--output")
    command("fit", run_file)
    assert "kept no average" in command(*given, "a.npy", "--averaged", code=2).err
    shutil.rmtree("runs")
    text = run_file.read_text().replace("[fit]", '[fit]\nmerge = { averaging = "ema" }')
    run_file.write_text(text)
    command("fit", run_file)
    command(*given, "last.npy")
    command(*given, "average.npy", "--averaged")
    average = compss_train.load("runs/small/averaged.safetensors", mlp())
    with torch.no_grad():
        expected = average(torch.from_numpy(data(4)[0])).numpy()
    np.testing.assert_allclose(np.load("average.npy"), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(np.load("last.npy"), expected, atol=1e-5)
    assert (
        command("evaluate", "runs/small", "--averaged").out != command("evaluate", "runs/small").out
    )
