"""What commands print for wrong input: a line, without a traceback, and no file is written or changed."""

import sys

import numpy as np
import pytest

from compss_train.reports.history import History
from tests.helpers.histories import steady_run

ERRORS = {
    "fit": "name a TOML file; compss-train fit --example prints one",
    "fit none.toml": "cannot read",
    "report runs/small -o page.pdf": "'page.pdf': a report is an HTML file; give a name that ends in .html",
    "report runs/small -o new/page.html": "new/page.html: the folder new does not exist; create it",
    "plot runs/small -o plot.docx": "'plot.docx' is not an image file; give a name that ends in .png, .svg or .pdf",
    "plot runs/small -o plot": "'plot' is not an image file; give a name that ends in .png, .svg or .pdf",
    "compare runs/small runs/small -o a.docx": "'a.docx' is not an image file",
    "plot runs/small -o my-plots/a.png": "the folder my-plots does not exist",
    "plot empty.jsonl": "empty.jsonl has no round yet",
    "plot nowhere": "No such file",
    "plot other.jsonl": "has no record of a round in line 1",
    "runs empty": "empty: no folder of a run is here",
    "advise runs/small --processes 0": "--processes=0: give an integer of at least 1",
    "advise commutative.jsonl": "commutative.jsonl: its workers do not merge in rounds",
    "advise empty.jsonl": "has no round yet",
    "evaluate nowhere": "nowhere: No such file or directory; give the folder that compss-train fit printed",
    "evaluate runs/small --data part.npz": "part.npz has no array 'y' for y, it has 'x', 'b'; choose one",
    "evaluate runs/small --data x.npy": "x.npy is x alone: name one other .npy file, y",
    "evaluate runs/small --data double.npy y.npy": "float64 went through a network with float32",
    "evaluate runs/small --data x.npy y.npy": "these samples cannot be evaluated: mat1 and mat2 shapes cannot be",
    "predict runs/small --input x.npy --output y.csv": "give a name that ends in .npy or .npz",
    "predict runs/small --input x.npy --output outer/y.npy": "outer/y.npy: the folder outer does not exist; create",
    "predict runs/small --input none.npy --output out.npy": "none.npy",
    "predict runs/small --input x.npy --output out.npy": "these samples cannot be predicted: ",
    "export runs/small -o model.pth": "ends in .npz, .safetensors, .onnx",
    "export runs/small -o new/model.npz": "new/model.npz: the folder new does not exist; create it",
    "shard x=y.npy x=y.npy --rows 5 --output o": "give each array a different name, NAME=FILE.npy",
    "shard x=y.npy =y.npy --rows 5 --output o": "give each array a different name, NAME=FILE.npy",
    "shard none-*.npz --rows 5 --output o": "no files found",
    "shard none.npz --rows 5 --output o": "does not exist",
    "shard y.npy y*.npy --rows 5 --output o": "occurs more than once",
    "shard x=words.npy --rows 5 --output o": "torch cannot hold",
    "shard words.npy --rows 5 --output o": "holds no numbers",
    "shard note.npz --rows 4 --output o": "note.npz holds no numbers in 'note': name the arrays or columns",
    "shard note.npz --rows 4 --output o --keys x,note": "holds no numbers in 'note': name the arrays or columns",
    "shard x=x.npy --rows 0 --output o": "rows=0",
    "shard x=x.npy y.npy --rows 5 --output o": "give all inputs this way",
    "shard x.npy --rows 5 --format npy --output .": "give a folder without .npy files",
    "shard x=x.npy y=y.npy --rows 5 --format npy --output o": "one array, named 'x'",
    "shard x=x.npy y=three.npy --rows 5 --output o": "different lengths: 'x' 4, 'y' 3",
    "shard x=x.npy --rows 5 --format h5 --output o": "pip install 'compss_train[hdf5]'",
    "configure --units -1": "units=-1 for localhost",
}


@pytest.fixture
def files(fitted, tmp_path):
    """A folder with a run and with files that do not suit it."""
    np.save("x.npy", np.zeros((4, 5), np.float32))
    np.save("double.npy", np.zeros((4, 6)))
    np.save("y.npy", np.zeros(4, np.int64))
    np.save("three.npy", np.zeros(3))
    np.save("words.npy", np.array(["a", "b"]))
    np.savez("part.npz", x=np.zeros((4, 6), np.float32), b=np.zeros(4))
    np.savez("note.npz", x=np.zeros((2, 3)), note=np.array(["a", "b"]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text("{}\n")
    History(steady_run(3, 2, "commutative")).save("commutative.jsonl")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("line", ERRORS)
def test_wrong_input_is_a_line_and_changes_nothing(files, command, monkeypatch, line):
    monkeypatch.setitem(sys.modules, "h5py", None)
    before = contents(files)
    error = command(*line.split(), code=2).err
    assert f"compss-train {line.split()[0]}: " in error
    assert ERRORS[line] in error
    assert "Traceback" not in error
    assert contents(files) == before
