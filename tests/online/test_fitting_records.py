"""fit_online: records, validation and callbacks; invalid options."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import DistributedTrainer, NotBuiltError
from compss_train.callbacks import Callback, JsonLines
from compss_train.model.resolving import resolve_metrics
from compss_train.online.reports import Reports
from compss_train.online.worker_messages import WorkerReport
from tests.helpers.callbacks import CallAt
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification, mlp
from tests.online.fits import build_trainer, fit_online
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    one_hot,
    simulate_rows,
    sum_loss,
    wait_for_file,
)

# Records, validation and callbacks

REPORTS = st.builds(
    WorkerReport,
    samples=st.integers(1, 9),
    batches=st.integers(0, 3),
    skipped_batches=st.integers(0, 2),
    loss=st.integers(0, 9).map(float),
    waited=st.integers(0, 5).map(float),
)


@given(st.lists(st.tuples(st.integers(0, 1), REPORTS)), st.data())
def test_a_record_that_was_not_made_leaves_all_to_the_next_one(reports, data):
    """Whether it was given up after more reports have come, or after its state was saved and
    loaded.
    """
    undisturbed, disturbed = (Reports(2, resolve_metrics(None)) for _ in range(2))
    for worker, report in reports:
        undisturbed.add(worker, report)
        disturbed.add(worker, report)
        if data.draw(st.booleans()):
            disturbed.record(0, {}, final=data.draw(st.booleans()))
            disturbed.put_back()
        if data.draw(st.booleans()):
            state = disturbed.state_dict()
            disturbed = Reports(2, resolve_metrics(None))
            disturbed.load_state_dict(state)
    clock = "seconds", "samples_per_second", "batches_per_second", "ended", "fit_started"
    whole, other = (each.record(0, {}, final=True) for each in (undisturbed, disturbed))
    assert {**whole, **dict.fromkeys(clock)} == {**other, **dict.fromkeys(clock)}


class TrainerProbe(Callback):
    """Calls methods of the trainer that callbacks may call, and those that they may not."""

    def __init__(self):
        self.calls = []
        self.parameters = []
        self.refused = []
        self.threads = set()

    def on_fit_start(self, trainer, total_samples):
        self.calls.append(("start", total_samples))

    def on_round_end(self, trainer, record):
        assert trainer.history[-1] is record
        self.calls.append(("round", record["round"]))
        self.parameters.append(trainer.get_parameters())
        self.threads.add(threading.current_thread())
        for forbidden in (
            lambda: fit_online(trainer, simulate_rows, [0]),
            lambda: trainer.build(mlp(), SGD, "cross_entropy"),
            lambda: trainer.set_parameters(self.parameters[-1]),
        ):
            with pytest.raises(RuntimeError, match="during a fit") as caught:
                forbidden()
            self.refused.append(caught.value)

    def on_fit_end(self, trainer):
        self.calls.append(("end", trainer.get_parameters()))


def test_validation_and_callbacks(local, tmp_path):
    """The second simulation waits for the first record."""
    x, y = classification(samples=119)
    probe = TrainerProbe()
    lines = JsonLines(tmp_path / "lines")
    recorded = tmp_path / "recorded"

    def simulate(arrays):
        if len(arrays[0]) > 50:
            wait_for_file(recorded)
        yield from simulate_rows(arrays)

    trainer = build_trainer(local, 1, awkward_net(), metric="accuracy")
    ours = fit_online(
        trainer,
        simulate,
        [(x[:50], y[:50]), (x[50:], y[50:])],
        record_every=0.001,
        validation_data=(x[:33], y[:33]),
        callbacks=[probe, lines, CallAt("round_end", lambda _: recorded.touch())],
    )
    assert probe.threads == {threading.current_thread()}
    assert probe.calls[0] == ("start", None)
    assert [number for what, number in probe.calls[1:-1]] == list(range(len(trainer.history)))
    assert probe.calls[-1][0] == "end"
    assert_same_bits(probe.calls[-1][1], ours)
    assert_same_bits(probe.parameters[-1], ours)
    assert len(probe.refused) == 3 * len(trainer.history)
    last = trainer.history[-1]
    evaluated = trainer.evaluate(x[:33], y[:33])
    assert (last["val_loss"], last["val_accuracy"]) == (evaluated["loss"], evaluated["accuracy"])
    assert all(np.isfinite(record["val_loss"]) for record in trainer.history)
    assert last["val_loss"] < trainer.history[0]["val_loss"]
    assert str([json.loads(line) for line in lines.path.read_text().splitlines()]) == str(
        [*trainer.history]
    )


def test_records_have_all_fields(local):
    x, y = classification(samples=60)
    trainer = build_trainer(local, 2, mlp(), metric="accuracy")
    fit_online(trainer, simulate_rows, [(x[:30], y[:30]), (x[30:], y[30:])], batch_size=5, count=2)
    json.dumps(trainer.history)
    for record in trainer.history:
        names = "round loss accuracy samples batches seconds samples_per_second batches_per_second"
        names += (
            " fit_started ended received buffer unseen repetitions_mean waited simulations workers"
        )
        assert list(record) == [
            *names.split(),
            *(["repetitions"] if record is trainer.history[-1] else []),
        ]
        assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])
        assert record["batches_per_second"] == pytest.approx(record["batches"] / record["seconds"])
        for name in ("samples", "batches", "received", "buffer", "waited"):
            assert sum(worker[name] for worker in record["workers"]) == record[name]
        assert [worker["worker"] for worker in record["workers"]] == [0, 1]
        assert record["received"] <= 60
    assert sum(record["samples"] for record in trainer.history) == 60
    mean = sum(r["loss"] * r["samples"] for r in trainer.history if r["samples"]) / 60
    assert 0 < mean < 5
    assert sum(worker["received"] for worker in trainer.history[-1]["workers"]) == 60


@pytest.mark.slow  # each process imports torchmetrics
def test_accumulating_metrics_cover_all_samples(local):
    """The table of each record counts the samples since the previous one."""
    from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

    x, y = classification(samples=60)
    metrics = {
        "table": MulticlassConfusionMatrix(num_classes=3),
        "f1": MulticlassF1Score(num_classes=3),
    }
    trainer = build_trainer(local, 2, mlp(), metric=metrics)
    validation = {"validation_data": (x[:20], y[:20])}
    fit_online(
        trainer,
        simulate_rows,
        [(x[:30], y[:30]), (x[30:], y[30:])],
        batch_size=5,
        count=2,
        **validation,
    )
    for record in trainer.history:
        of_workers = [
            np.array(worker["table"]) for worker in record["workers"] if worker["samples"]
        ]
        np.testing.assert_array_equal(record["table"], sum(of_workers))
        assert (np.sum(record["table"]), np.sum(record["val_table"])) == (record["samples"], 20)
    assert sum(np.sum(record["table"]) for record in trainer.history) == 60
    assert trainer.history[-1]["val_f1"] == trainer.evaluate(x[:20], y[:20])["f1"]


def test_records_are_made_during_training(local, tmp_path):
    """The simulation runs until the first record was made."""

    class Release(Callback):
        def on_round_end(self, trainer, record):
            (tmp_path / "recorded").touch()
            self.running = getattr(self, "running", None) or record["simulations"]

    def simulate(_):
        while not (tmp_path / "recorded").exists():
            yield one_hot(0, 10), np.float32(0)

    release = Release()
    trainer = build_trainer(local, 1, CountingNet(10), COUNTING_SGD, sum_loss)
    fit_online(trainer, simulate, [0], batch_size=5, callbacks=[release])
    assert release.running == {"running": 1, "done": 0, "failed": 0}
    assert len(trainer.history) >= 2


def test_invalid_options_raise_before_anything_starts(local, recwarn):
    for engine, error, match, options in (
        (local, NotBuiltError, "call build", {}),
        (
            local,
            ValueError,
            "17 samples cannot come from a FIFO of capacity 16",
            {"batch_size": 17},
        ),
        ("serial", ValueError, "use engine='local'", {}),
    ):
        trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
        if error is not NotBuiltError:
            trainer.build(mlp(), SGD, "cross_entropy")
        with pytest.raises(error, match=match):
            fit_online(trainer, simulate_rows, [0], **options)
        assert trainer.history == []
