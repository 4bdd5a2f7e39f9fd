"""Running the examples of a document in this process."""

import runpy

import pytest


@pytest.fixture
def run_blocks(forked_processes, monkeypatch, capsys, tmp_path):
    """Run blocks of code as one script, in an empty folder, where warnings are errors; return what
    it printed.
    """
    monkeypatch.chdir(tmp_path)

    def run(blocks):
        (tmp_path / "example.py").write_text("\n".join(blocks))
        runpy.run_path("example.py", run_name="__main__")
        return capsys.readouterr().out

    return run
