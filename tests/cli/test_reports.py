import json
import subprocess
import sys

import pytest

from compss_train.cli.run_files.run_folder import KILLED, RUNNING, RunFolder


def test_runs_and_histories_are_reported(run_file, fitted, command, tmp_path):
    page = fitted / "report.html"
    assert "complete" in page.read_text()
    page.unlink()
    assert command("report", fitted).out == f"3 rounds reported in {page}\n"
    assert "momentum" in page.read_text()  # the configuration is known
    assert json.loads((fitted / "configuration.json").read_text())["trainer"]["seed"] == 3
    assert "File" not in "".join(json.loads((fitted / "configuration.json").read_text())["fit"]["callbacks"])
    command("report", fitted / "history.jsonl", "-o", "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()


def test_what_the_callback_report_has_written_stays(fitted, command, tmp_path):
    (fitted / "history.jsonl").rename(tmp_path / "history.jsonl")
    (tmp_path / "report.html").write_text("of the callback")
    assert command("report", tmp_path).out == f"3 rounds reported in {tmp_path / 'history.html'}\n"
    assert (tmp_path / "report.html").read_text() == "of the callback"


def test_invalid_names_of_reports_are_an_error_and_leave_nothing(fitted, command, tmp_path):
    before = sorted(tmp_path.iterdir())
    output = command("report", fitted, "-o", "page.pdf", code=2).err
    assert "'page.pdf': a report is an HTML file; give a name that ends in .html" in output
    output = command("report", fitted, "-o", "new/page.html", code=2).err
    assert "new/page.html: the folder new does not exist; create it" in output
    assert sorted(tmp_path.iterdir()) == before


def test_a_report_can_be_disabled(run_file, command, tmp_path):
    command("fit", run_file, "--set", "output.report=false")
    assert not (tmp_path / "runs" / "small" / "report.html").exists()


def test_runs_and_histories_are_plotted(fitted, command, tmp_path):
    pytest.importorskip("matplotlib")
    output = command("plot", fitted).out
    assert output == f"3 rounds drawn in {fitted / 'plot.png'}\n"
    assert (fitted / "plot.png").read_bytes().startswith(b"\x89PNG")
    command("plot", fitted / "history.jsonl", "-o", "curves.svg", "--against", "epoch")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_invalid_histories_are_an_error(fitted, command, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl has no round yet" in command("plot", "empty.jsonl", code=2).err
    assert "No such file" in command("plot", "nowhere", code=2).err
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert "has no record of a round in line 1" in command("plot", "other.jsonl", code=2).err


def test_invalid_names_of_plots_are_an_error_and_leave_nothing(fitted, command, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("plot.docx", "plot"):
        output = command("plot", fitted, "-o", name, code=2).err
        assert f"'{name}' is no image file; give a name that ends in .png, .svg or .pdf" in output
    assert "the folder my-plots does not exist" in command("plot", fitted, "-o", "my-plots/a.png", code=2).err
    assert not list(tmp_path.glob("*plot*"))


def test_runs_are_listed_and_compared(run_file, fitted, command, tmp_path):
    other = tmp_path / "runs" / "other"
    command("fit", run_file, "--output", other, "--set", "build.optimizer.lr=0.1", "--set", "fit.progress=false")
    header, *rows = command("runs").out.splitlines()
    assert header.split()[:3] == ["run", "state", "rounds"]
    assert [row.split()[:3] for row in rows] == [[f"runs/{name}", "complete", "3"] for name in ("other", "small")]
    table = command("compare", "runs/small", "runs/other").out.splitlines()
    names = table[0].split()
    assert names[:4] == ["run", "state", "lr", "rounds"]
    assert [line.split()[names.index("lr")] for line in table[1:]] == ["0.05", "0.1"]
    assert "2 runs compared in c.html" in command("compare", fitted, other, "-o", "c.html").out
    assert (tmp_path / "c.html").read_text().count("<figure") >= 3
    command("report", fitted, other)
    assert (tmp_path / "comparison.html").exists()


def test_curves_of_runs_are_drawn_together(fitted, command, tmp_path):
    pytest.importorskip("matplotlib")
    assert command("plot", fitted, fitted / "history.jsonl").out == "2 runs compared in comparison.png\n"
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "no image file" in command("plot", fitted, fitted, "-o", "a.docx", code=2).err


def test_a_report_that_is_written_again_is_the_same(fitted, command):
    written = (fitted / "report.html").read_text()
    command("report", fitted)
    assert (fitted / "report.html").read_text() == written


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


def test_a_folder_without_runs_is_an_error(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "runs: no folder of a run is here" in command("runs", code=2).err
