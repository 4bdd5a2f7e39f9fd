import json


def test_runs_and_histories_are_reported(run_file, fitted, command, tmp_path):
    page = fitted / "report.html"
    assert "complete" in page.read_text()
    page.unlink()
    assert command("report", fitted).out == f"3 rounds reported in {page}\n"
    assert "momentum" in page.read_text()  # the configuration is known
    assert json.loads((fitted / "configuration.json").read_text())["trainer"]["seed"] == 3
    command("report", fitted / "history.jsonl", "-o", "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()


def test_invalid_output_names_are_an_error_and_leave_nothing(fitted, command, tmp_path):
    before = sorted(tmp_path.iterdir())
    output = command("report", fitted, "-o", "page.pdf", code=2).err
    assert "'page.pdf': a report is an HTML file; give a name that ends in .html" in output
    output = command("report", fitted, "-o", "new/page.html", code=2).err
    assert "new/page.html: the folder new does not exist; create it" in output
    assert sorted(tmp_path.iterdir()) == before


def test_a_report_can_be_disabled(run_file, command, tmp_path):
    command("fit", run_file, "--set", "output.report=false")
    assert not (tmp_path / "runs" / "small" / "report.html").exists()
