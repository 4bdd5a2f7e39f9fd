from pathlib import Path

import numpy as np
import pytest

from compss_train import FileDataset, PartialShuffleSampler
from compss_train.cli import main


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
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["shard", *arrays, "--rows", "8", "--output", first]) == 0
    assert f"4 files in {first}" in capsys.readouterr().out
    files = FileDataset(f"{first}/*.npz")
    assert [Path(name).name for name in files.files] == [f"part-{number:06d}.npz" for number in range(4)]
    assert files.sizes == (8, 8, 8, 6)
    assert labels(files) == list(range(30))
    assert main(["shard", *files.files, "--rows", "20", "--output", second, "--format", format]) == 0
    others = FileDataset(f"{second}/*")
    assert others.sizes == (20, 10)
    assert labels(others) == list(range(30))


def test_shard_keeps_the_order_of_quoted_patterns(arrays, tmp_path):
    main(["shard", *arrays, "--rows", "5", "--output", str(tmp_path / "a")])
    patterns = [f"{tmp_path}/a/part-00000[3-5].npz", f"{tmp_path}/a/part-00000[0-2].npz"]
    assert main(["shard", *patterns, "--rows", "30", "--output", str(tmp_path / "b")]) == 0
    assert labels(FileDataset(f"{tmp_path}/b/*")) == [*range(15, 30), *range(15)]


def test_shard_shuffles_samples(arrays, tmp_path):
    first, *mixed = (str(tmp_path / name) for name in "abc")
    main(["shard", *arrays, "--rows", "8", "--output", first])
    inputs = FileDataset(f"{first}/*").files
    for output in mixed:
        options = ["--rows", "8", "--shuffle-buffer", "10", "--seed", "3", "--output", output]
        assert main(["shard", *inputs, *options]) == 0
    orders = [labels(FileDataset(f"{output}/*")) for output in mixed]
    assert orders[0] == orders[1] != list(range(30))
    assert sorted(orders[0]) == list(range(30))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_shard_writes_strings_of_columns_that_are_named_as_classes(tmp_path, capsys, suffix):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    kinds = ["oak", "elm", "oak", "ash", "oak"]
    write = {"csv": pa.csv.write_csv, "parquet": pa.parquet.write_table}[suffix]
    for number, names in enumerate((kinds[:3], kinds[3:])):
        columns = {"x": [float(len(name)) for name in names], "y": names, "note": names, "day": range(len(names))}
        write(pa.table(columns), tmp_path / f"{number}.{suffix}")
    command = ["shard", f"{tmp_path}/*.{suffix}", "--rows", "4", "--output", str(tmp_path / "out")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"0.{suffix} holds no numbers in 'note': name the arrays or columns to write with --keys" in error
    assert not list(tmp_path.glob("out/*"))
    assert main([*command, "--keys", "y,note"]) == 0
    lines = [
        f"2 files in {tmp_path}/out",
        *(f"classes of {name}: 0 is ash, 1 is elm, 2 is oak" for name in ("y", "note")),
    ]
    assert capsys.readouterr().out.splitlines() == lines
    (batch,) = PartialShuffleSampler(FileDataset(f"{tmp_path}/out/*.npz"), shuffle=False, batch_size=5)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "y": [2, 1, 2, 0, 2],
        "note": [2, 1, 2, 0, 2],
    }
