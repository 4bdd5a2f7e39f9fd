import pytest


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


def test_invalid_output_names_are_an_error_and_leave_nothing(fitted, command, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("plot.docx", "plot"):
        output = command("plot", fitted, "-o", name, code=2).err
        assert f"'{name}' is no image file; give a name that ends in .png, .svg or .pdf" in output
    assert "the folder my-plots does not exist" in command("plot", fitted, "-o", "my-plots/a.png", code=2).err
    assert not list(tmp_path.glob("*plot*"))
