"""The callbacks that write the history to files and to TensorBoard folders."""

import csv
import json
import math
import os
import resource
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given

from compss_train.callbacks import Callback, Csv, JsonLines, Report, TensorBoard
from compss_train.reports.history import History
from compss_train.reports.records import flatten
from tests.helpers.callbacks import StopAfter
from tests.helpers.histories import histories, online_record
from tests.helpers.models import SGD, mlp
from tests.helpers.shared_engine import other_process
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.reports.page_reader import PageReader

FILES = [JsonLines, Csv]


@pytest.fixture
def trainer():
    return trainer_of(workers=2, net=mlp, optimizer=SGD)


def call_hooks(callback, records, resumed_from=None):
    """Tell a callback of a fit with these records, of a trainer that has those before."""
    trainer = SimpleNamespace(
        history=records[: resumed_from or 0], resumed_from=resumed_from, configuration={}
    )
    callback.on_fit_start(trainer, None)
    for record in records[resumed_from:]:
        callback.on_round_start(trainer, record["round"])
        trainer.history.append(record)
        callback.on_round_end(trainer, record)
    callback.on_fit_end(trainer)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rounds_of(path):
    if path.suffix == ".csv":
        return [int(cells["round"]) for cells in rows_of(path)]
    return [json.loads(line)["round"] for line in path.read_text().splitlines()]


def test_json_lines_have_the_history(trainer, tmp_path):
    path = tmp_path / "made" / "history.jsonl"
    for _ in range(2):
        fit(trainer, JsonLines(path))
        assert History.load(path) == trainer.history


@given(histories())
def test_csv_has_a_row_per_round_with_columns_added_later(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("csv") / "history.csv"
    call_hooks(Csv(path), history)
    rows = rows_of(path)
    assert len(rows) == len(history)
    for cells, record in zip(rows, history, strict=True):
        expected = flatten(record)
        assert all(
            cells[name] == ("" if name not in expected else str(expected[name])) for name in cells
        )
        assert expected.keys() <= cells.keys()


def test_csv_appends_to_an_existing_file(trainer, tmp_path):
    path = tmp_path / "history.csv"
    fit(trainer, Csv(path))
    before = path.read_text()
    fit(trainer, Csv(path))
    assert path.read_text().startswith(before)
    fit(trainer, Csv(path), validation_data=(X, Y))
    rows = rows_of(path)
    assert [cells["loss"] for cells in rows] == [str(record["loss"]) for record in trainer.history]
    assert [cells["val_loss"] for cells in rows[:6]] == [""] * 6
    assert float(rows[-1]["val_loss"]) == trainer.history[-1]["val_loss"]


def records_of(run, count=6):
    """The records of a run, which began at another time than others."""
    return [{**online_record(number), "ended": 100.5 * run + number} for number in range(count)]


def path_of(folder, logger):
    return folder / f"history.{'csv' if logger is Csv else 'jsonl'}"


@pytest.mark.parametrize("logger", FILES)
@pytest.mark.parametrize("resumed_from", [None, 2])
def test_rounds_of_another_run_are_set_aside(tmp_path, logger, resumed_from):
    path = path_of(tmp_path, logger)
    for run in range(3):
        expected = {path.name: list(range(resumed_from if resumed_from and run else 0, 6))}
        for earlier in range(run):
            name = f"history.{earlier + 1}{path.suffix}"
            expected[name] = list(range(resumed_from if resumed_from and earlier else 0, 6))
        if run:
            with pytest.warns(
                UserWarning, match=rf"had \d rounds of another run, .* now in history\.{run}\."
            ):
                call_hooks(logger(path), records_of(run), resumed_from)
        else:
            call_hooks(logger(path), records_of(run))
        assert {file.name: rounds_of(file) for file in tmp_path.glob(f"*{path.suffix}")} == expected


def test_json_lines_have_their_configuration_beside_them(tmp_path):
    for run, lr in enumerate((0.1, 0.2)):
        trainer = trainer_of(workers=2, net=mlp, optimizer={**SGD, "lr": lr})
        for name in ("history.jsonl", "own.jsonl"):
            with pytest.warns(UserWarning, match="of another run") if run else nullcontext():
                fit(trainer, JsonLines(tmp_path / name))
    rates = {
        path.name: json.loads(path.read_text())["build"]["optimizer"]["arguments"]["lr"]
        for path in tmp_path.glob("*.json")
    }
    assert rates == {
        "configuration.json": 0.2,
        "history.1.configuration.json": 0.1,
        "own.configuration.json": 0.2,
        "own.1.configuration.json": 0.1,
    }


@pytest.mark.parametrize(
    ("logger", "text", "name"),
    [
        (Csv, "name,price\nbread,3\n", "'round,'"),
        (Csv, "first line\nsecond line", "history"),
        (JsonLines, "first line\nsecond line", '{"round": '),
        (JsonLines, "first line\nsecond line\n", "history"),
        (JsonLines, '{"lr": 0.1}', "history"),
    ],
)
def test_a_file_with_other_contents_is_not_changed(trainer, tmp_path, logger, text, name, raises):
    path = tmp_path / "history"
    path.write_text(text)
    with raises(ValueError, name):
        fit(trainer, logger(path))
    assert path.read_text() == text
    assert trainer.history == []


@pytest.mark.parametrize(
    ("logger", "rounds", "left", "resumed"),
    [
        (JsonLines, 3, 3, None),
        *(
            (kind, *case)
            for kind in FILES
            for case in ((3, 0, None), (3, 17, None), (6, None, 3), (6, -30, 3))
        ),
    ],
)
def test_rounds_after_the_checkpoint_and_a_line_that_was_cut_are_replaced(
    tmp_path, logger, rounds, left, resumed
):
    path = path_of(tmp_path, logger)
    call_hooks(logger(path), records_of(1, rounds))
    path.write_bytes(path.read_bytes()[:left])  # killed while it wrote
    call_hooks(logger(path), records_of(1), resumed)
    assert rounds_of(path) == [*range(6)]
    assert [file.name for file in tmp_path.glob(f"*{path.suffix}")] == [path.name]


@pytest.mark.parametrize("logger", [*FILES, TensorBoard, Report])
def test_unwritable_files_are_errors_before_training(trainer, tmp_path, logger):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file") as raised:
        fit(trainer, logger(tmp_path / "file" / "history.html"))
    assert raised.value.__notes__[0] == (
        f"Raised in the callback {logger.__name__}, by its on_fit_start."
    )
    assert trainer.history == []


@pytest.mark.parametrize("logger", FILES)
def test_a_full_disk_is_a_warning_and_the_fit_ends_well(trainer, tmp_path, logger):
    """The system refuses to let files grow beyond some bytes."""
    path = path_of(tmp_path, logger)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    again = logger(path.with_stem("again"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        with pytest.warns(
            UserWarning, match=r"no more rounds are written to .*\[Errno 27"
        ) as caught:
            fit(trainer, logger(path), num_epochs=60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len([each for each in caught if "no more rounds" in str(each.message)]) == 1
    assert len(trainer.history) == 60
    assert path.stat().st_size <= 6000
    fit(trainer, again, num_epochs=1)
    assert rounds_of(again.path) == [60]


def events(folder):
    """Return the scalars and texts that TensorBoard shows."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = accumulator.EventAccumulator(str(folder), {"scalars": 0, "tensors": 0})
    shown.Reload()
    scalars = {name: shown.Scalars(name) for name in shown.Tags()["scalars"]}
    texts = {
        name: shown.Tensors(name)[-1].tensor_proto.string_val[0] for name in shown.Tags()["tensors"]
    }
    return scalars, texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_rounds_workers_and_the_configuration(trainer, tmp_path):
    for _ in range(2):
        fit(trainer, TensorBoard(tmp_path / "board"))
    scalars, texts = events(tmp_path / "board")
    for name in ("loss", "accuracy", "samples_per_second"):
        rows = [(each.step, each.wall_time, each.value) for each in scalars[name]]
        assert rows == [(r["round"], r["ended"], pytest.approx(r[name])) for r in trainer.history]
    of_worker = [record["workers"][1] for record in trainer.history]
    for name in ("loss", "accuracy", "seconds"):
        assert [each.value for each in scalars[f"workers/{name}/1"]] == pytest.approx(
            [own[name] for own in of_worker]
        )
    rows = json.loads(texts["configuration/text_summary"])
    shown = {part: value for part, value in trainer.configuration.items() if part != "details"}
    assert rows == json.loads(json.dumps(shown))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_the_fits_of_a_search_as_runs(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "board"
    callback = TensorBoard(folder)
    histories = []
    for _ in range(2):
        trainer = trainer_of()
        fit(trainer, callback, num_epochs=2)
        fit(trainer, callback, num_epochs=1)  # it goes on in the same charts
        histories.append(trainer.history)
    trainer = trainer_of()
    fit(trainer, TensorBoard(folder), num_epochs=1)
    fit(trainer, TensorBoard(folder), num_epochs=1)
    histories.append(trainer.history)
    for run, history in zip(["", "run-2", "run-3"], histories, strict=True):
        scalars, _ = events(folder / run)
        points = [(point.step, point.value) for point in scalars["loss"]]
        assert points == [(record["round"], pytest.approx(record["loss"])) for record in history]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_many_short_fits_of_a_run(tmp_path):
    """Its files of a second are not in the order of their names: 10 is before 9."""
    pytest.importorskip("tensorboard")
    trainer = trainer_of()
    for _ in range(12):
        fit(trainer, TensorBoard(tmp_path), num_epochs=1)
    scalars, _ = events(tmp_path)
    assert [point.step for point in scalars["loss"]] == [*range(12)]


def test_tensorboard_shows_lists_nan_and_rounds_of_a_resumed_fit(tmp_path):
    more = {"val_recall": [0.5, math.nan]}
    records = [online_record(number, 0.5 + number, **more) for number in range(4)]
    configured = {"note": "first"}

    class Board(TensorBoard):
        def on_fit_start(self, trainer, total_samples):
            trainer.configuration = configured
            super().on_fit_start(trainer, total_samples)

    call_hooks(Board(tmp_path), records)
    again = [*records[:2], *(online_record(number, 100.0 + number) for number in range(2, 4))]
    call_hooks(Board(tmp_path), again, resumed_from=2)
    scalars, _ = events(tmp_path)
    assert [(each.step, each.value) for each in scalars["loss"]] == [
        (0, 0.5),
        (1, 1.5),
        (2, 102.0),
        (3, 103.0),
    ]
    assert [each.value for each in scalars["val_recall/0"]] == [0.5] * 2
    assert all(math.isnan(each.value) for each in scalars["val_recall/1"])


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_special_files_are_not_replaced(trainer, kind, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        FileExistsError, match=r"it exists and is not a regular file; give another path: .*pipe"
    ):
        fit(trainer, kind(tmp_path / "pipe"))
    assert (tmp_path / "pipe").is_fifo()


def begin(connection, kind, path):
    """Begin a fit that writes to a file, and report why that is not possible."""
    try:
        kind(path).on_fit_start(
            SimpleNamespace(history=[], resumed_from=None, configuration={}), None
        )
    except BlockingIOError as error:
        connection.send(str(error))


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_another_fit_writes_to_is_locked(kind, tmp_path):
    """Whichever program it is of: rounds of the two would alternate, and a resumed one would remove
    the other's.
    """
    path = tmp_path / "history"
    first = kind(path)
    second = kind(path)
    trainer = SimpleNamespace(history=[], resumed_from=None, configuration={})
    first.on_fit_start(trainer, None)
    before = path.read_bytes()
    with other_process(begin, kind, path) as (_, connection):
        error = connection.recv()
    assert f"[Errno 11] process {os.getpid()} on " in error
    assert "is writing to this file; wait until it ends, or choose another" in error
    with pytest.raises(BlockingIOError, match="is writing to this file"):
        second.on_fit_start(trainer, None)
    assert path.read_bytes() == before
    first.on_fit_end(trainer)
    second.on_fit_start(trainer, None)
    second.on_exception(trainer, RuntimeError())
    first.on_fit_start(trainer, None)
    first.on_fit_end(trainer)
    assert {each.name for each in tmp_path.iterdir()} - {"configuration.json"} == {"history"}


class Reading(Callback):
    """Reads the report after each round."""

    def __init__(self, path):
        self.path = path
        self.seen = []

    def on_fit_start(self, trainer, total_samples):
        self.seen.append(self.read())

    def on_round_end(self, trainer, record):
        self.seen.append(self.read())

    def read(self):
        text = self.path.read_text()
        rounds = len(PageReader(text).rows(-1)) if PageReader(text).tables else 0
        return rounds, ">running<" in text, 'http-equiv="refresh"' in text


def test_reports_are_written_during_a_fit_and_at_its_end(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("compss_train.callbacks.report.MIN_SECONDS", 0.0)
    monkeypatch.setattr("compss_train.callbacks.report.MAX_SHARE", math.inf)
    path = tmp_path / "made" / "report.html"
    reading = Reading(path)
    fit(trainer, Report(path), reading, num_epochs=4)
    assert reading.seen == [(rounds, True, True) for rounds in range(5)]
    assert reading.read() == (4, False, False)
    text = path.read_text()
    assert ">complete<" in text
    assert all(
        part in text
        for part in ("Training of Sequential", "num_epochs", "torch.optim.sgd.SGD", "Report")
    )
    fit(trainer, Report(path), num_epochs=4)
    assert len(PageReader(path.read_text()).rows(-1)) == 8
    assert list(path.parent.iterdir()) == [path]


class Failing(Callback):
    def on_round_end(self, trainer, record):
        if record["round"] == 2:
            raise RuntimeError("enough of <this>\nand that")


@pytest.mark.parametrize(
    ("ending", "why", "rounds"),
    [
        (StopAfter(0), "stopped: enough", 1),
        (Failing(), "failed: RuntimeError: enough of <this>", 3),
    ],
)
def test_reports_show_why_a_fit_ended_early(trainer, tmp_path, ending, why, rounds):
    with suppress(RuntimeError):
        fit(trainer, Report(tmp_path / "report.html"), ending)
    reader = PageReader((tmp_path / "report.html").read_text())
    assert why in reader.texts
    assert len(reader.rows(-1)) == rounds
