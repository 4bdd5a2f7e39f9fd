"""Live reports have what the files of a run have, whenever they are read."""

import pytest

from compss_train.cli.run_files.live_report import LiveReport
from compss_train.cli.run_files.run_folder import RUNNING
from compss_train.exceptions import BadFileError
from compss_train.reports.html.page import page_parts
from tests.cli.run_files.running_runs import CONFIGURATION, ROUNDS, folder, no_waiting, write_rounds

__all__ = ["folder", "no_waiting"]


def test_a_live_report_has_the_rounds_that_were_written(folder):
    live = LiveReport(folder.path)
    assert live.changes(0)[1] == page_parts([], CONFIGURATION, RUNNING)
    for rounds in range(1, len(ROUNDS) + 1):
        write_rounds(folder, 1)
        assert live.changes(0)[1] == page_parts(ROUNDS[:rounds], CONFIGURATION, RUNNING)
    folder.write_state("complete")
    assert live.changes(0)[1] == page_parts(ROUNDS, CONFIGURATION, "complete")


def test_changes_are_the_parts_that_differ(folder):
    live = LiveReport(folder.path)
    first, _ = live.changes(0)
    assert live.changes(first) == (first, {})
    write_rounds(folder, 1)
    second, changed = live.changes(first)
    assert set(changed) == {"head", "figures", "curves", "workers", "rounds"}
    folder.write_state("stopped by Ctrl-C")
    third, changed = live.changes(second)
    assert set(changed) == {"head"}
    assert "stopped by Ctrl-C" in changed["head"]
    assert first < second < third
    assert set(live.changes(first)[1]) == {"head", "figures", "curves", "workers", "rounds"}


def test_a_line_that_is_being_written_is_not_shown_yet(folder):
    live = LiveReport(folder.path)
    write_rounds(folder, 2, then='{"round": 2, "ep')
    assert live.changes(0)[1] == page_parts(ROUNDS[:2], CONFIGURATION, RUNNING)


def test_a_run_that_starts_again_is_followed(folder):
    write_rounds(folder, 5)
    live = LiveReport(folder.path)
    folder.history.unlink()
    assert "No round has ended yet" in live.changes(0)[1]["figures"]
    folder.history.touch()
    write_rounds(folder, 2)
    assert live.changes(0)[1] == page_parts(ROUNDS[:2], CONFIGURATION, RUNNING)
    folder.history.write_text("{}\n")  # what is no history leaves the page as it is
    assert live.changes(0)[1] == page_parts(ROUNDS[:2], CONFIGURATION, RUNNING)


def test_files_are_read_again_after_many_times_the_seconds_that_it_took(folder, monkeypatch):
    monkeypatch.setattr("compss_train.cli.run_files.live_report.MAX_SHARE", 1e-9)
    live = LiveReport(folder.path)
    write_rounds(folder, 1)
    assert live.changes(0)[1] == page_parts([], CONFIGURATION, RUNNING)


def test_histories_without_the_folder_of_a_run_are_shown(folder, tmp_path):
    write_rounds(folder, 2)
    alone = tmp_path / "alone" / "rounds.jsonl"
    alone.parent.mkdir()
    folder.history.rename(alone)
    assert LiveReport(alone).changes(0)[1] == page_parts(ROUNDS[:2], {}, None)


def test_what_is_no_run_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "nothing.jsonl"):
        with pytest.raises(FileNotFoundError, match=f"{path}: no run is here"):
            LiveReport(path)
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(BadFileError, match="has no record of a round in line 1"):
        LiveReport(tmp_path)
