"""Scripts without ``if __name__ == "__main__"``."""

from tests.helpers.documents import ROOT


def test_a_script_without_a_guard_trains_once(run, tmp_path):
    done = run("unguarded.py", tmp_path / "notes", flags=(f"--pythonpath={ROOT}",))
    assert done.returncode == 0, done.output
    assert (tmp_path / "notes").read_text().split() == ["script", "script", "fit", "end"]
    assert "Traceback" not in done.output
