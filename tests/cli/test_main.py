import json
import re
import shlex
import subprocess
import sys
import warnings

import numpy as np
import pytest
import shtab
from torch import nn

from compss_train.callbacks import JsonLines
from compss_train.cli import main
from compss_train.cli.arguments import make_parser
from compss_train.cli.run_files import KILLED, RUNNING, RunFolder
from compss_train.reports.history import History
from tests.helpers.histories import steady_run
from tests.helpers.models import SGD
from tests.helpers.small_fits import fit, trainer_of

COMMANDS = re.findall(r"^    (\w+)", make_parser().format_help(), re.MULTILINE)


def test_version_help_and_bad_arguments(command):
    assert command("--version").out
    for name in ("", *COMMANDS):
        assert f"usage: compss-train {name}" in command(*name.split(), "--help").out
    for arguments in ([], ["cure"], ["doctor", "--nodes", "a,,b"]):
        assert "usage: compss-train" in command(*arguments, code=2).err


def test_each_example_of_the_help_is_one_command_that_is_understood(command):
    examples = 0
    for name in COMMANDS:
        lines = re.findall(
            rf"^  (?:\S.* )?compss-train {name}\b.*", command(name, "--help").out, re.M
        )
        for line in lines:
            assert line.count("compss-train") == 1
            text = re.split(r" > | -- |\)", line.partition("compss-train")[2])[0]
            assert make_parser().parse_args(shlex.split(text)).command == name
        examples += len(lines)
    assert examples > 20


def test_ctrl_c_ends_with_the_code_that_shells_have(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("compss_train.engines.compss.configuration.write", interrupt)
    assert main(["configure", "--units", "1"]) == 130
    assert capsys.readouterr().err == "compss-train configure: interrupted\n"


def test_warnings_are_printed_as_messages_of_the_command(monkeypatch, capsys):
    def warn(*arguments, **options):
        warnings.warn("few units", stacklevel=1)
        raise ValueError("no units")

    monkeypatch.setattr("compss_train.engines.compss.configuration.write", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert main(["configure", "--units", "1"]) == 2
        assert warnings.showwarning is before
    assert capsys.readouterr().err == (
        "compss-train configure: few units\ncompss-train configure: no units\n"
    )


@pytest.mark.slow  # a program imports torch
def test_output_that_nobody_reads_is_no_error():
    command = [sys.executable, "-m", "compss_train", "fit", "--example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_shells_complete_commands_and_options():
    script = shtab.complete(make_parser(), shell="bash")
    assert all(name in script for name in (*COMMANDS, "--dry-run"))


ERRORS = {
    "fit": "name a TOML file; compss-train fit --example prints one",
    "fit none.toml": "cannot read",
    "report runs/small -o page.pdf": (
        "'page.pdf': a report is an HTML file; give a name that ends in .html"
    ),
    "report runs/small -o new/page.html": "new/page.html: the folder new does not exist; create it",
    "plot runs/small -o plot.docx": (
        "'plot.docx' is not an image file; give a name that ends in .png, .svg or .pdf"
    ),
    "plot runs/small -o plot": (
        "'plot' is not an image file; give a name that ends in .png, .svg or .pdf"
    ),
    "compare runs/small runs/small -o a.docx": "'a.docx' is not an image file",
    "plot runs/small -o my-plots/a.png": "the folder my-plots does not exist",
    "plot empty.jsonl": "empty.jsonl has no round yet",
    "plot nowhere": "No such file",
    "plot other.jsonl": "has no record of a round in line 1",
    "report damaged": "configuration.json is not a configuration: 'float' object is not iterable",
    "runs empty": "empty: this folder has no runs",
    "advise runs/small --processes 0": "--processes=0: give an integer of at least 1",
    "advise commutative.jsonl": "commutative.jsonl: its workers do not merge in rounds",
    "advise empty.jsonl": "has no round yet",
    "evaluate nowhere": (
        "nowhere: No such file or directory; give the folder that compss-train fit printed"
    ),
    "evaluate runs/small --data part.npz": (
        "part.npz has no array 'y' for y, it has 'x', 'b'; choose one"
    ),
    "evaluate runs/small --data x.npy": "x.npy is x alone: name one other .npy file, y",
    "evaluate runs/small --data x.npy y.npy": (
        "these samples cannot be evaluated: … mat1 and mat2 shapes cannot be"
    ),
    "predict runs/small --input x.npy --output y.txt": "give a name that ends in .npy, .npz, .csv",
    "predict runs/small --input x.npy --output outer/y.npy": (
        "outer/y.npy: the folder outer does not exist; create"
    ),
    "predict runs/small --input none.npy --output out.npy": "none.npy",
    "predict runs/small --input x.npy --output out.npy": "these samples cannot be predicted: ",
    "shard x=y.npy x=y.npy --rows 5 --output o": "give each array a different name, NAME=FILE.npy",
    "shard x=y.npy =y.npy --rows 5 --output o": "give each array a different name, NAME=FILE.npy",
    "shard none-*.npz --rows 5 --output o": "no files found",
    "shard none.npz --rows 5 --output o": "does not exist",
    "shard y.npy y*.npy --rows 5 --output o": "occurs more than once",
    "shard x=words.npy --rows 5 --output o": "torch cannot hold",
    "shard words.npy --rows 5 --output o": "holds no numbers",
    "shard note.npz --rows 4 --output o": (
        "note.npz holds no numbers in 'note': name the arrays or columns"
    ),
    "shard note.npz --rows 4 --output o --keys x,note": (
        "holds no numbers in 'note': name the arrays or columns"
    ),
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
    np.save("y.npy", np.zeros(4, np.int64))
    np.save("three.npy", np.zeros(3))
    np.save("words.npy", np.array(["a", "b"]))
    np.savez("part.npz", x=np.zeros((4, 6), np.float32), b=np.zeros(4))
    np.savez("note.npz", x=np.zeros((2, 3)), note=np.array(["a", "b"]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text("{}\n")
    History(steady_run(3, 2, "commutative")).save("commutative.jsonl")
    (tmp_path / "damaged").mkdir()
    History(steady_run(3, 2)).save("damaged/history.jsonl")
    (tmp_path / "damaged/configuration.json").write_text('{"trainer": {}, "build": 1e300}')
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("line", ERRORS)
def test_wrong_input_is_a_line_and_changes_nothing(files, command, monkeypatch, line):
    monkeypatch.setitem(sys.modules, "h5py", None)
    before = contents(files)
    error = command(*line.split(), code=2).err
    assert f"compss-train {line.split()[0]}: " in error
    assert all(part in error for part in ERRORS[line].split(" … "))
    assert "Traceback" not in error
    assert contents(files) == before


def test_runs_write_the_report_that_the_command_writes(run_file, command, tmp_path):
    run_file.write_text(run_file.read_text().replace("report = false", ""))
    command("fit", run_file)
    folder = tmp_path / "runs" / "small"
    written = (folder / "report.html").read_text()
    assert "complete" in written
    assert "momentum" in written  # the configuration is known
    (folder / "report.html").unlink()
    assert command("report", folder).out == f"3 rounds reported in {folder / 'report.html'}\n"
    assert (folder / "report.html").read_text() == written
    configuration = json.loads((folder / "configuration.json").read_text())
    assert configuration["trainer"]["seed"] == 3
    assert "File" not in "".join(configuration["fit"]["callbacks"])
    command("report", folder / "history.jsonl", "-o", "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()
    (folder / "history.jsonl").rename(tmp_path / "history.jsonl")
    (tmp_path / "report.html").write_text("of the callback")
    assert command("report", tmp_path).out == f"3 rounds reported in {tmp_path / 'history.html'}\n"
    assert (tmp_path / "report.html").read_text() == "of the callback"


def test_runs_are_listed_and_compared(run_file, fitted, command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    other = tmp_path / "runs" / "other"
    command("fit", run_file, "--output", other, settings=["build.optimizer.lr=0.1"])
    header, *rows = command("runs").out.splitlines()
    assert header.split()[:3] == ["run", "state", "rounds"]
    assert [row.split()[:3] for row in rows] == [
        [f"runs/{name}", "complete", "3"] for name in ("other", "small")
    ]
    table = command("compare", "runs/small", "runs/other").out.splitlines()
    names = table[0].split()
    assert names[:4] == ["run", "state", "lr", "rounds"]
    assert [line.split()[names.index("lr")] for line in table[1:]] == ["0.05", "0.1"]
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("compare", "runs/small", "runs/other").out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["run", "runs/small", "runs/other"],
        ["state", "complete", "complete"],
        ["lr", "0.05", "0.1"],
    ]
    assert "2 runs compared in c.html" in command("compare", fitted, other, "-o", "c.html").out
    assert (tmp_path / "c.html").read_text().count("<figure") >= 3
    assert (
        "2 runs compared in c.png\n"
        in command("compare", fitted, fitted / "history.jsonl", "-o", "c.png").out
    )
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "1 run compared in c.html" in command("compare", fitted, "-o", "c.html").out


def test_programs_read_what_runs_have_reached(run_file, fitted, command):
    other = fitted.with_name("other")
    command("fit", run_file, "--output", other, settings=["build.optimizer.lr=0.1"])
    listed = json.loads(command("runs", "--json").out)
    assert [(run["run"], run["state"], run["rounds"], run["epochs"]) for run in listed] == [
        ("runs/other", "complete", 3, 3),
        ("runs/small", "complete", 3, 3),
    ]
    output = command("compare", "runs/small", "runs/other", "--json", "-o", "c.html").out
    compared = json.loads(output)
    assert [run["settings"]["lr"] for run in compared] == [0.05, 0.1]
    assert (run_file.parent / "c.html").exists()
    history = History.load(fitted / "history.jsonl")
    (small,) = [run for run in listed if run["run"] == "runs/small"]
    assert small["last"]["val_loss"] == history[-1]["val_loss"]
    losses = [record["val_loss"] for record in history]
    assert small["best"]["val_loss"] == {
        "value": min(losses),
        "round": losses.index(min(losses)),
    }
    assert small["samples_per_second"] > 0


def test_a_run_without_a_round_is_json_too(tmp_path, command):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/history.jsonl").touch()
    (run,) = json.loads(command("runs", tmp_path, "--json").out)
    assert (run["rounds"], run["epochs"], run["last"], run["samples_per_second"]) == (
        0,
        None,
        {},
        None,
    )


def test_runs_of_scripts_are_compared_by_their_settings(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    for name, lr, width in (
        ("a/history.jsonl", 0.05, 8),
        ("b/history.jsonl", 0.1, 8),
        ("c.jsonl", 0.05, 16),
    ):
        net = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        fit(trainer_of(net=lambda net=net: net, optimizer={**SGD, "lr": lr}), JsonLines(name))
    names, *rows = (
        line.split() for line in command("compare", "a", "b", "c.jsonl").out.splitlines()
    )
    compared = ["parameters", "lr", "net.0.out_features", "net.2.in_features"]
    assert names[: names.index("rounds")] == ["run", *compared]
    assert [row[:5] for row in rows] == [
        ["a", "83", "0.05", "8", "8"],
        ["b", "83", "0.1", "8", "8"],
        ["c.jsonl", "163", "0.05", "16", "16"],
    ]


def test_states_of_runs_are_known_and_kept_by_reports(fitted, command):
    folder = RunFolder(fitted)
    assert folder.state() == "complete"
    folder.write_state("stopped by Ctrl-C")
    command("report", fitted)
    assert "stopped by Ctrl-C" in (fitted / "report.html").read_text()
    folder.write_state(RUNNING)
    assert folder.state() == RUNNING
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    written = json.loads(folder.state_file.read_text())
    folder.state_file.write_text(json.dumps({**written, "pid": ended.pid}))
    assert folder.state() == KILLED
    folder.state_file.write_text("{")
    assert folder.state() is None
    assert "unknown" in command("runs", fitted.parent).out


def rows(output):
    """The table, as lists of cells by number of workers."""
    lines = [line.split() for line in output.splitlines() if line[:9].strip().rstrip("*").isdigit()]
    return {int(cells[0].rstrip("*")): cells for cells in lines}


def test_names_with_escape_sequences_do_nothing_to_a_terminal(fitted, command):
    fitted.rename(fitted.with_name("small\x1b[2J"))
    listed = command("runs", "runs").out
    assert r"small\x1b[2J" in listed
    assert "\x1b" not in listed + command("report", "none\x1b[2J", code=2).err


def test_a_run_file_says_how_many_workers_learn_as_one(run_file, command):
    output = command("advise", run_file).out
    table = rows(output)
    assert list(table) == [1, 2, 4, 8, 16, 32, 64]
    assert [cells[-1] for cells in table.values()] == ["epoch"] * 4 + ["never"] * 3
    assert "little against one in 3 epochs: 12." in output
    answer = json.loads(command("advise", run_file, "--json").out)
    assert answer["learn_as_one"] == 12
    assert [choice["workers"] for choice in answer["choices"]] == list(table)
    assert [choice["as_one_after"] for choice in answer["choices"]] == [1] * 4 + [None] * 3
    assert [str(choice["batch_size"]) for choice in answer["choices"]] == [
        cells[1] for cells in table.values()
    ]


def test_a_history_says_what_a_round_takes(tmp_path, command):
    measured = tmp_path / "history.jsonl"
    History(steady_run(30, 6)).save(measured)
    output = command("advise", measured).out
    assert f"{measured}: 6 workers, 6 at a time, 600 samples a round" in output
    table = rows(output)
    assert list(table) == [1, 2, 4, 6, 8, 16, 32, 64]
    assert table[6] == ["6*", "0.8", "750", "25%"]
    assert "where 6 train at a time: 6 workers." in output
    more = command("advise", measured, "--processes", 64).out
    assert rows(more)[6][0] == "6"
    assert "where 64 train at a time: 32 workers." in more
    answer = json.loads(command("advise", measured, "--json").out)
    assert (answer["workers"], answer["processes"], answer["fastest"]) == (6, 6, 6)
    (of_the_run,) = [row for row in answer["predictions"] if row["measured"]]
    assert of_the_run["workers"] == 6
    assert of_the_run["seconds"] == pytest.approx(0.8)
    assert of_the_run["not_training"] == pytest.approx(0.25)
