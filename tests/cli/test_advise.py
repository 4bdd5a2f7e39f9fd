import pytest

from compss_train.reports.history import History
from tests.helpers.histories import steady_run


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "history.jsonl"
    History(steady_run(30, 6)).save(path)
    return path


def rows(output):
    """The table, as lists of cells by number of workers."""
    lines = [line.split() for line in output.splitlines() if line[:9].strip().rstrip("*").isdigit()]
    return {int(cells[0].rstrip("*")): cells for cells in lines}


def test_a_history_says_what_a_round_takes(run, command):
    output = command("advise", run).out
    assert f"{run}: 6 workers, 6 at a time, 600 samples a round" in output
    table = rows(output)
    assert list(table) == [1, 2, 4, 6, 8, 16, 32, 64]
    assert table[6] == ["6*", "0.8", "750", "25%"]
    assert "where 6 train at a time: 6 workers." in output
    more = command("advise", run, "--processes", 64).out
    assert rows(more)[6][0] == "6"
    assert "where 64 train at a time: 32 workers." in more


def test_runs_that_cannot_advise_are_errors(run, command):
    assert "--processes=0: give an integer of at least 1" in command("advise", run, "--processes", 0, code=2).err
    History(steady_run(3, 2, "commutative")).save(run)
    assert "history.jsonl: its workers do not merge in rounds" in command("advise", run, code=2).err
    run.write_text("")
    assert "has no round yet" in command("advise", run, code=2).err
