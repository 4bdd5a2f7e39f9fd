"""Existing files and folders of others or of another run are left unchanged; the order of callbacks."""

import pytest

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback, Checkpoint, Csv, JsonLines, Report
from compss_train.training.checkpoints.storage import list_checkpoints
from tests.helpers.models import SGD, blocked, classification, mlp


def fitted(seed, *callbacks, epochs=2, trainer=None):
    x, y = classification(20)
    trainer = trainer or DistributedTrainer(1, engine="serial", seed=seed, threads=1)
    if not trainer.history:
        trainer.build(mlp(), SGD, "cross_entropy")
    trainer.fit(*blocked(x, y, 2), num_epochs=epochs, batch_size=5, callbacks=callbacks, progress=False)
    return trainer


def test_checkpoints_of_a_shorter_run_are_of_another_run(tmp_path):
    fitted(0, Checkpoint(tmp_path), epochs=2)
    other = fitted(1, epochs=4)
    with pytest.raises(FileExistsError, match="another run"):
        fitted(1, Checkpoint(tmp_path), trainer=other)
    assert list(list_checkpoints(tmp_path)) == [0, 1]


def test_a_second_fit_continues_in_the_folder_of_the_first(tmp_path):
    trainer = fitted(0, Checkpoint(tmp_path, keep=9))
    fitted(0, Checkpoint(tmp_path, keep=9), trainer=trainer)
    assert list(list_checkpoints(tmp_path)) == [0, 1, 2, 3]


def test_an_error_of_the_checkpoint_folder_leaves_the_report(tmp_path):
    page = tmp_path / "report.html"
    fitted(0, Checkpoint(tmp_path / "checkpoints"), Report(page))
    before = page.read_bytes()
    with pytest.raises(FileExistsError):
        fitted(1, Report(page), Checkpoint(tmp_path / "checkpoints"))
    assert page.read_bytes() == before


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_file_with_other_contents_is_not_appended_to(tmp_path, end):
    path = tmp_path / "notes"
    path.write_text(f"first line\nsecond line{end}")
    for callback in (JsonLines(path), Csv(path)):
        with pytest.raises(ValueError, match="notes exists"):
            fitted(0, callback)
    assert path.read_text() == f"first line\nsecond line{end}"


def test_a_table_with_other_rounds_names_the_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("round,epoch\nfirst,1\n")
    with pytest.raises(
        ValueError, match=r"table\.csv exists and has an invalid number or time of a round: .*'first'"
    ):
        fitted(0, Csv(path))


def test_a_callback_with_state_starts_first_and_ends_rounds_last():
    calls = []

    class Noting(Callback):
        def __init__(self, name, keeps):
            self.name, self.keeps_state = name, keeps

        def on_fit_start(self, trainer, total_samples):
            calls.append(("start", self.name))

        def on_round_end(self, trainer, record):
            calls.append(("round", self.name))

        def on_fit_end(self, trainer):
            calls.append(("end", self.name))

    fitted(0, Noting("a", False), Noting("b", True), epochs=1)
    assert calls == [
        (hook, name) for hook, names in (("start", "ba"), ("round", "ab"), ("end", "ba")) for name in names
    ]
