import json
import subprocess
import sys

import pytest

from compss_train.cli.run_files import KILLED, RUNNING, RunFolder
from compss_train.reports.history import History
from tests.helpers.histories import steady_run


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


def test_runs_are_plotted_alone_and_together(fitted, command, tmp_path):
    pytest.importorskip("matplotlib")
    output = command("plot", fitted).out
    assert output == f"3 rounds drawn in {fitted / 'plot.png'}\n"
    assert (fitted / "plot.png").read_bytes().startswith(b"\x89PNG")
    command("plot", fitted / "history.jsonl", "-o", "curves.svg", "--against", "epoch")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_runs_are_listed_and_compared(run_file, fitted, command, tmp_path):
    other = tmp_path / "runs" / "other"
    command("fit", run_file, "--output", other, settings=["build.optimizer.lr=0.1"])
    header, *rows = command("runs").out.splitlines()
    assert header.split()[:3] == ["run", "state", "rounds"]
    assert [row.split()[:3] for row in rows] == [[f"runs/{name}", "complete", "3"] for name in ("other", "small")]
    table = command("compare", "runs/small", "runs/other").out.splitlines()
    names = table[0].split()
    assert names[:4] == ["run", "state", "lr", "rounds"]
    assert [line.split()[names.index("lr")] for line in table[1:]] == ["0.05", "0.1"]
    assert "2 runs compared in c.html" in command("compare", fitted, other, "-o", "c.html").out
    assert (tmp_path / "c.html").read_text().count("<figure") >= 3
    assert "2 runs compared in c.png\n" in command("compare", fitted, fitted / "history.jsonl", "-o", "c.png").out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


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
