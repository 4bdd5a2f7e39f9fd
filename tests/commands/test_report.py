import json


def test_runs_and_histories_are_reported(run_file, fitted, command, tmp_path):
    page = fitted / "report.html"
    assert "complete" in page.read_text()
    page.unlink()
    assert command("report", fitted).out == f"3 rounds reported in {page}\n"
    assert "momentum" in page.read_text()  # the configuration is known
    assert json.loads((fitted / "configuration.json").read_text())["trainer"]["seed"] == 3
    command("report", fitted / "history.jsonl", "-o", "new/page.html")
    assert "<html" in (tmp_path / "new" / "page.html").read_text()


def test_a_report_can_be_left_out(run_file, command, tmp_path):
    command("fit", run_file, "--set", "output.report=false")
    assert not (tmp_path / "runs" / "small" / "report.html").exists()
