"""Simulations.write: the samples in the files are those of the simulations, each once."""

import json
import os
import runpy
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    FileDataset,
    PartialShuffleSampler,
    SerialEngine,
    SimulationError,
    Simulations,
    SpacedInputs,
)
from tests.helpers.shared_engine import other_process, result_of_process, send_result
from tests.helpers.waiting import hang, wait_until
from tests.online.solvers.compiled import compiled, heat, mpirun, solver

pytestmark = pytest.mark.usefixtures("check_threads")

CELLS = 5
STEPS = 4
FRACTIONS = [0.25, 0.5, 0.75, 1.0, 1 / 3]


def sine(frequency):
    for step in range(int(4 * frequency) + 1):
        yield (
            np.array([frequency, step], np.float32),
            np.array([np.sin(frequency * step)], np.float32),
        )


def sample(left, step, fields):
    """Leaves out a time step."""
    if step == 1:
        return None
    return np.array([left, step], np.float32), fields["temperature"].astype(np.float32)


def heat_solver(ranks=2, **options):
    command = mpirun(ranks, compiled("mpicc", "heat.c"))
    return solver([*command, "{}", str(STEPS), str(CELLS)], sample, **options)


def samples_in(files):
    """Return (step, x, y) of all samples in files, in their order."""
    samples = []
    for name in files:
        with np.load(name) as arrays:
            samples += [
                (int(step), x.tolist(), y.tolist())
                for step, x, y in zip(arrays["step"], arrays["x"], arrays["y"], strict=True)
            ]
    return samples


def samples_of(simulate, inputs):
    """Return the same from the simulations themselves."""
    samples = []
    for value in inputs:
        for index, item in enumerate(simulate(value)):
            step, x, y = item if len(item) == 3 else (index, *item)
            samples.append((step, x.tolist(), y.tolist()))
    return samples


@pytest.mark.parametrize("make", [lambda: sine, heat_solver])
def test_files_have_the_samples_of_a_loop_over_the_simulations(tmp_path, engine, make):
    simulate = make()
    simulations = Simulations(simulate, FRACTIONS, count=2)
    files = simulations.write(tmp_path, engine=engine)
    assert [Path(name).name for name in files] == [
        f"simulation-{number:06d}.npz" for number in range(len(FRACTIONS))
    ]
    expected = samples_of(simulate, FRACTIONS)
    assert samples_in(files) == expected
    stamps = [os.stat(name).st_mtime_ns for name in files]
    assert simulations.write(tmp_path, engine=engine) == files
    assert [os.stat(name).st_mtime_ns for name in files] == stamps


def test_a_data_set_trains_and_validates_an_online_fit(tmp_path, local):
    files = Simulations(sine, FRACTIONS).write(tmp_path / "data", engine=local)
    Simulations(sine, iter([0.6])).write(tmp_path / "valid", engine=local)
    data = FileDataset(str(tmp_path / "data" / "*.npz"))
    valid = FileDataset(str(tmp_path / "valid" / "*.npz"))
    assert len(data) == len(samples_in(files))
    trainer = DistributedTrainer(num_workers=1, engine=local, seed=0)
    trainer.build(nn.Linear(2, 1), {"optimizer": "adam", "lr": 0.01}, "mse")
    trainer.fit(data, num_epochs=2, batch_size=4, validation_data=valid, progress=False)
    trainer.fit_online(
        Simulations(sine, FRACTIONS),
        buffer=BufferSpec("FIFO", 100),
        batch_size=4,
        validation_data=valid,
        progress=False,
    )
    assert trainer.history[-1]["val_loss"] == pytest.approx(trainer.evaluate(valid)["loss"])


@pytest.mark.parametrize("format", ["npz-compressed", "pt", "h5"])
def test_each_format_holds_the_samples(tmp_path, format):
    files = Simulations(sine, FRACTIONS).write(tmp_path, engine="serial", format=format)
    data = FileDataset(str(tmp_path / f"*.{format.partition('-')[0]}"))
    expected = [x for _, x, _ in samples_of(sine, FRACTIONS)]
    [batch] = PartialShuffleSampler(
        data, batch_size=1000, shuffle=False, pools=2, num_replicas=1, rank=0
    )
    assert batch["x"].tolist() == expected
    assert len(files) == len(FRACTIONS)


def one_array(start):
    """The same memory in each time step, and no y."""
    state = np.full(3, start, np.float32)
    for _ in range(3):
        state += 1
        yield state


def test_samples_are_copied_and_y_may_be_left_out(tmp_path):
    [name] = Simulations(one_array, [0.0]).write(tmp_path, engine="serial")
    with np.load(name) as arrays:
        assert sorted(arrays) == ["step", "x"]
        assert arrays["x"][:, 0].tolist() == [1, 2, 3]


def nothing_at_odd(value):
    return [] if value % 2 else [(np.float32([value]), np.float32([value]))]


def memory_of(kind, path):
    if kind == "mapped":
        return np.memmap(path, np.float32, "w+", shape=4)
    return torch.zeros(4) if kind in ("tensor", "graph") else np.zeros(4, np.float32)


VIEWS = {
    "graph": lambda memory: memory.clone().requires_grad_() * 1,
    "read-only": lambda memory: np.frombuffer(memory.data.toreadonly(), np.float32),
    "reversed": lambda memory: memory[::-1],
}


@pytest.mark.parametrize("format", ["npz", "pt"])
@pytest.mark.parametrize("kind", ["mapped", "graph", "tensor", "read-only", "reversed"])
def test_a_sample_is_as_it_was_when_it_was_yielded(tmp_path, kind, format):
    path = tmp_path / "memory"

    def simulate(_):
        memory = memory_of(kind, path)
        for step in range(3):
            memory[:] = step
            yield VIEWS.get(kind, lambda memory: memory)(memory), np.float32(step)

    [name] = Simulations(simulate, [0]).write(tmp_path / "data", engine="serial", format=format)
    arrays = np.load(name) if format == "npz" else torch.load(name)
    assert arrays["x"].tolist() == [[step] * 4 for step in range(3)]
    assert arrays["y"].tolist() == [0, 1, 2]
    assert not getattr(arrays["x"], "requires_grad", False)


def test_a_simulation_that_runs_again_has_its_input_where_its_memory_is_used_again(tmp_path):
    failed = tmp_path / "failed"

    def inputs():
        value = {"rate": np.zeros(2, np.float32)}
        for number in range(3):
            value["rate"][:] = number
            yield value

    def simulate(value):
        if not failed.exists():
            failed.touch()
            raise OSError("busy")
        yield value["rate"]

    with pytest.warns(UserWarning, match="simulation 0 of input .*busy; retry 1"):
        files = Simulations(simulate, inputs(), count=3).write(tmp_path / "data", engine="serial")
    assert [np.load(name)["x"].tolist() for name in files] == [[[n, n]] for n in range(3)]


def test_a_simulation_without_samples_is_complete_and_has_no_file(tmp_path):
    simulations = Simulations(nothing_at_odd, range(4))
    files = simulations.write(tmp_path, engine="serial")
    assert [Path(name).name for name in files] == ["simulation-000000.npz", "simulation-000002.npz"]
    assert simulations.write(tmp_path, engine="serial") == files


# Failures


def fails_once(value):
    """Fails in the middle, dies or hangs at the first time."""
    number, how, flag = value
    yield np.float32([number, 0]), np.float32([0])
    if how and not Path(flag).exists():
        Path(flag).touch()
        if how == "raises":
            raise RuntimeError("lost a file")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        hang()
    yield np.float32([number, 1]), np.float32([1])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "failed: RuntimeError: lost a file; retry 1 of 2"),
        ("dies", "failed: its process died; retry 1 of 2"),
        ("hangs", "(?s)failed: no sample within 1.0 s; retry 1 of 9.*fails_once"),
    ],
)
def test_a_simulation_that_fails_runs_again_and_its_samples_are_there_once(
    tmp_path, local, how, said
):
    inputs = [(number, how if number == 1 else "", str(tmp_path / "flag")) for number in range(3)]
    # On a slow machine, one that does not hang may take as long now and then.
    options = {"timeout": 1.0, "retries": 9} if how == "hangs" else {}
    with pytest.warns(UserWarning, match=said):
        files = Simulations(fails_once, inputs, **options).write(tmp_path / "data", engine=local)
    assert samples_in(files) == samples_of(fails_once, inputs)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        *(f"simulation-{number:06d}.npz" for number in range(3)),
        "simulations.jsonl",
    ]


def fails_without(value):
    number, flag = value
    if number == 1 and not Path(flag).exists():
        raise RuntimeError("no mesh")
    yield np.float32([number]), np.float32([number])


def test_what_was_given_up_is_reported_and_repeated(tmp_path):
    inputs = [(number, str(tmp_path / "flag")) for number in range(3)]
    simulations = Simulations(fails_without, inputs, retries=0)
    with pytest.warns(UserWarning, match="no mesh") as warned:
        files = simulations.write(tmp_path / "data", engine="serial")
    last = str(warned[-1].message)
    assert "is 1 simulations short, which were given up: simulation 1 of input (1, " in last
    assert "RuntimeError: no mesh" in last
    assert len(files) == 2
    [failed] = [line for line in records(tmp_path / "data") if line["failed"]]
    assert (failed["simulation"], failed["failed"]) == (1, "RuntimeError: no mesh")
    (tmp_path / "flag").touch()
    files = simulations.write(tmp_path / "data", engine="serial")
    assert samples_in(files) == samples_of(fails_without, inputs)
    assert not any(line["failed"] for line in records(tmp_path / "data"))


def records(folder):
    return [json.loads(line) for line in (folder / "simulations.jsonl").read_text().splitlines()]


def never(value):
    raise RuntimeError(f"no {value}")
    yield


@pytest.mark.parametrize(("number", "given_up"), [(2, 2), (50, 3)])
def test_if_all_fail_that_is_the_error(tmp_path, number, given_up):
    with (
        pytest.warns(UserWarning, match="RuntimeError: no "),
        pytest.raises(SimulationError, match=f"{given_up} .*given up"),
    ):
        Simulations(never, range(number), retries=0).write(tmp_path, engine="serial")


def widening(value):
    yield np.zeros(value, np.float32), np.zeros(1, np.float32)


def widening_within(value):
    yield from widening(value)
    yield from widening(value + 1)


def test_samples_of_other_shapes_are_an_error_that_names_both(tmp_path):
    with pytest.raises(SimulationError) as raised:
        Simulations(widening, [2, 3]).write(tmp_path / "a", engine="serial")
    assert "simulation 1 of input 3 yielded what does not fit" in str(raised.value)
    assert "(3,)" in str(raised.value)
    assert "simulation 0 of input 2 has samples of {'x': 'float32 (2,)'" in str(raised.value)
    assert [path.name for path in (tmp_path / "a").glob("*.npz")] == ["simulation-000000.npz"]
    with pytest.raises(SimulationError, match=r"after samples of {'x': 'float32 \(2,\)'"):
        Simulations(widening_within, [2]).write(tmp_path / "b", engine="serial")


def test_a_solver_with_fewer_steps_has_failed(tmp_path):
    with (
        pytest.warns(UserWarning, match=f"ended after {STEPS} of 5 time steps"),
        pytest.raises(SimulationError),
    ):
        Simulations(heat_solver(), [1.0], steps=5, retries=0).write(tmp_path, engine="serial")


def half_as_many(value):
    """Steps of a solver that ends early, with one input as if it were complete."""
    return STEPS // 2 if value == 0.75 else STEPS


def ending_early():
    command = [*mpirun(1, compiled("mpicc", "heat.c")), "{value}", "{steps}", str(CELLS)]
    return solver(command, lambda value, step, fields: np.float32([step]))


def test_solvers_that_differ_in_their_steps_are_a_warning(tmp_path):
    """As in a fit; also compared with what an earlier program has written."""
    inputs = [{"value": value, "steps": half_as_many(value)} for value in [0.5, 0.75, 1.0]]
    simulate = ending_early()
    words = r"simulation 1 of .* ended after 2 time steps, and simulation 0 of .* after 4: "
    with pytest.warns(UserWarning, match=words) as warned:
        Simulations(simulate, inputs).write(tmp_path / "a", engine="serial")
    assert len(warned) == 1
    Simulations(simulate, inputs[:1]).write(tmp_path / "b", engine="serial")
    with pytest.warns(UserWarning, match=words):
        Simulations(simulate, inputs).write(tmp_path / "b", engine="serial")
    given = Simulations(simulate, inputs, steps=lambda value: value["steps"])
    given.write(tmp_path / "c", engine="serial")


def test_complete_simulations_have_the_steps_of_a_later_call(tmp_path, raises):
    """Those written without ``steps`` may have ended early."""
    files = Simulations(sine, [0.25, 0.5]).write(tmp_path, engine="serial")
    steps = [2, 3]
    with raises(ValueError, "steps="):
        Simulations(sine, [0.25, 0.5], steps=3).write(tmp_path, engine="serial")
    known = Simulations(sine, [0.25, 0.5], steps=lambda value: steps[int(4 * value) - 1])
    assert known.write(tmp_path, engine="serial") == files


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "simulations.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"line 1 of .*simulations.jsonl is no record"):
        Simulations(sine, [0.25]).write(tmp_path, engine="serial")


class Blind(SerialEngine):
    """Can only wait, as COMPSs."""

    def arrived(self, refs):
        return []


def test_an_engine_that_can_only_wait_writes_the_same(tmp_path):
    files = Simulations(sine, FRACTIONS, count=3).write(tmp_path, engine=Blind())
    assert samples_in(files) == samples_of(sine, FRACTIONS)


# Going on


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from compss_train import Simulations
from tests.helpers.waiting import wait_until

def simulate(number):
    with open("runs", "a") as file:
        file.write(f"{number} ")
    for step in range(3):
        yield step, np.float32([number, step]), np.float32([number * step])
        if number == 3:
            wait_until(Path("go on").exists)

simulations = Simulations(simulate, range(6), count=2)
if __name__ == "__main__":
    simulations.write("data", engine=sys.argv[1])
"""


def moving(number):
    os.chdir("/")
    yield np.float32([number]), np.float32([number])


def test_simulations_may_change_the_folder_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = Simulations(moving, range(3)).write("data", engine="serial")
    assert names == sorted(map(str, (tmp_path / "data").glob("*.npz")))


def run_study(folder, engine):
    os.chdir(folder)
    sys.argv = ["study.py", engine]
    runpy.run_path("study.py", run_name="__main__")


def test_a_program_that_is_killed_goes_on_and_each_sample_is_there_once(tmp_path):
    (tmp_path / "study.py").write_text(PROGRAM)
    data = tmp_path / "data"
    with other_process(send_result, run_study, tmp_path, "local"):  # kills it
        wait_until(lambda: (data / "simulation-000005.npz").exists())
    assert not (data / "simulation-000003.npz").exists()
    text = (data / "simulations.jsonl").read_text()
    (data / "simulations.jsonl").write_text(text[:-20])  # cut off
    (data / ".simulation-000003.abcd.npz").write_text("half")
    (tmp_path / "go on").touch()
    result_of_process(run_study, tmp_path, "serial")
    files = sorted(map(str, data.glob("*.npz")))
    assert samples_in(files) == [
        (step, [number, step], [number * step]) for number in range(6) for step in range(3)
    ]
    assert sorted(line["simulation"] for line in records(data)) == list(range(6))
    assert not list(data.glob(".*"))
    runs = (tmp_path / "runs").read_text().split()
    assert len(runs) <= 6 + 1 + 2  # simulation 3, and those whose lines were not there


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([0.5, 0.25], "the input of simulation 1 was 0.75"),
        ([0.5], "inputs= has 1 items, and "),
        (iter([0.5]), "inputs= has 1 items, and "),
    ],
)
def test_other_inputs_are_an_error(tmp_path, inputs, said):
    Simulations(sine, [0.5, 0.75]).write(tmp_path, engine="serial")
    with pytest.raises(ValueError, match=said):
        Simulations(sine, inputs).write(tmp_path, engine="serial")


def test_inputs_may_be_added_and_removed_files_are_written_again(tmp_path):
    [name] = Simulations(sine, [0.5]).write(tmp_path, engine="serial")
    os.unlink(name)
    files = Simulations(sine, [0.5, 0.75]).write(tmp_path, engine="serial")
    assert samples_in(files) == samples_of(sine, [0.5, 0.75])


def test_wrong_calls_are_errors_before_anything_runs(tmp_path, raises):
    simulations = Simulations(never, [1.0])
    with raises(ValueError, "SpacedInputs"):
        Simulations(sine, SpacedInputs([(0, 1)], 3, lambda value: value)).write(tmp_path)
    with raises(ValueError, "senders=1"):
        Simulations(senders=1, address="tcp://127.0.0.1:5555", token="secret").write(tmp_path)
    with raises(ValueError, "format='npy'"):
        simulations.write(tmp_path, format="npy")
    with raises(ValueError, "folder='s3://bucket'"):
        simulations.write("s3://bucket")
    with raises(ValueError, "engine='nowhere'"):
        simulations.write(tmp_path, engine="nowhere")
    with raises(ValueError, "timeout=1.0 on the serial engine"):
        Simulations(sine, [1.0], timeout=1.0).write(tmp_path, engine="serial")
    with raises(ValueError, "inputs= has no item"):
        Simulations(sine, iter([])).write(tmp_path, engine="serial")
    Simulations(sine, [1.0]).write(tmp_path / "h5", engine="serial", format="h5")
    with raises(ValueError, "format='npz'"):
        Simulations(sine, [1.0]).write(tmp_path / "h5", engine="serial")
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "mine.npz", x=np.ones(3))
    with raises(ValueError, "already contains mine.npz"):
        simulations.write(tmp_path / "other", engine="serial")
    (tmp_path / "h5" / "simulations.jsonl").write_text("{}\n")
    with raises(ValueError, "line 1 of"):
        Simulations(sine, [1.0]).write(tmp_path / "h5", engine="serial", format="h5")


def test_heat_is_the_bits_of_numpy(tmp_path):
    [name] = Simulations(heat_solver(), [1 / 3]).write(tmp_path, engine="serial")
    with np.load(name) as arrays:
        expected = [u.astype(np.float32) for u, _ in heat(1 / 3, STEPS, CELLS)]
        np.testing.assert_array_equal(arrays["y"], [expected[step] for step in (0, 2, 3)])


STOPS = []
"""Before which samples ``stopping`` is stopped, counted over all runs; the serial engine shares it.
"""
MADE = []
"""The samples that it has made."""


def stopping(value):
    """A simulation that is stopped, as by Ctrl-C."""
    for sample in steps_of(value):
        if STOPS and len(MADE) >= STOPS[0]:
            del STOPS[0]
            raise KeyboardInterrupt
        MADE.append(sample)
        yield sample


def steps_of(value):
    """Has as many samples as its value says, numbered from another time step on."""
    for step in range(value):
        yield step + 3, np.float32([value, step]), np.float32([step])


@settings(max_examples=25)
@given(
    inputs=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    stops=st.lists(st.integers(0, 12), max_size=4).map(sorted),
    cuts=st.lists(st.integers(0, 200), min_size=4, max_size=4),
)
def test_each_sample_is_there_once_however_often_it_was_stopped(inputs, stops, cuts):
    """A cut takes so many bytes from the end of the record, as a kill may."""
    STOPS[:] = stops
    MADE.clear()
    with tempfile.TemporaryDirectory() as folder:
        simulations = Simulations(stopping, inputs)
        record = Path(folder, "simulations.jsonl")
        for cut in cuts:
            with suppress(KeyboardInterrupt):
                simulations.write(folder, engine="serial")
            content = record.read_bytes()
            record.write_bytes(content[: max(0, len(content) - cut)])
        STOPS.clear()
        files = simulations.write(folder, engine="serial")
        assert samples_in(files) == samples_of(steps_of, inputs)
        assert sorted(files) == sorted(map(str, Path(folder).glob("*.npz")))
        lines = sorted(records(Path(folder)), key=lambda line: line["simulation"])
        assert [line["samples"] for line in lines] == inputs


def test_more_cores_than_there_are_is_said(tmp_path, capsys):
    for cpus in (1, 1000):
        simulations = Simulations(heat_solver(1, cpus=cpus), [1 / 3], count=1)
        simulations.write(tmp_path / str(cpus), engine="serial")
    said = capsys.readouterr().err
    assert "1 simulations of 1000 cores each share" in said
    assert "1 simulations of 1 cores" not in said
