"""What every engine does, run on each of them."""

import copy
import os
import pickle
import socket
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from compss_train import EngineClosedError, LocalEngine, SerialEngine
from compss_train._utils.validation import warn_once
from compss_train.engines import RayEngine, Resources, calls, liveness
from compss_train.engines.liveness import Heartbeat
from compss_train.model.program_settings import ProgramSettings
from tests.engines import tasks
from tests.model.test_program_settings import TOGETHER, changed
from tests.simulation.engine import SimulatedEngine
from tests.training.checkpoints.trees import assert_same

MORE_ENGINES = ["simulated"]


def runs_tasks_side_by_side(engine):
    return engine.traits.asynchronous and not isinstance(engine, SimulatedEngine)


def fetch(engine, ref):
    return engine.fetch([ref])[0]


@pytest.mark.parametrize(
    "value",
    [
        7,
        "text",
        None,
        np.arange(12).reshape(3, 4),
        np.random.default_rng(0).random((300, 400)),
        np.array(3.5),
        np.zeros((0, 4)),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        {"a": np.ones(3), "b": [torch.ones(2), (1, torch.arange(3, dtype=torch.int16))]},
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.rand(100_000).to(torch.bfloat16),
        torch.rand(4, 3, 50, 50).contiguous(memory_format=torch.channels_last),
        torch.rand(50, 60)[::2, ::3],
        torch.tensor(2.5),
        torch.arange(8).reshape(2, 4)[:1, 1],  # contiguous, whatever its strides
        torch.zeros(0, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_were(engine, value):
    for ref in (engine.publish(value), engine.submit(tasks.wait_for, tasks.Path("/"), value)):
        back = fetch(engine, ref)
        assert_same(back, value)
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            assert back.stride() == value.stride()


def test_copies_of_an_owner_share_its_engine(engine):
    owner = {"engine": engine}
    assert copy.deepcopy(owner)["engine"] is engine
    with pytest.raises(
        TypeError, match=(f"cannot be pickled; name the engine instead: '{engine.name}'")
    ):
        pickle.dumps(owner)


def test_tasks_take_values_references_and_lists_of_references(engine):
    arrays = [engine.publish(np.full(3, n)) for n in range(4)]
    summed = engine.submit(tasks.total, arrays)
    mixed = engine.submit(tasks.total, [summed, np.ones(3)])
    assert fetch(engine, mixed).tolist() == [7, 7, 7]
    assert fetch(engine, engine.submit(tasks.add, 1, engine.submit(tasks.add, 2, 3), 4)) == 10


def test_one_task_may_have_several_results(engine):
    head, tail, text = engine.submit(tasks.split, np.arange(5), returns=3)
    assert fetch(engine, engine.submit(tasks.total, [head, head])).tolist() == [0]
    assert engine.fetch([tail, text])[0].tolist() == [1, 2, 3, 4]
    assert engine.fetch([tail, text])[1] == "text"


def test_a_chain_of_tasks_runs_in_order(engine):
    value = engine.publish(0)
    for step in range(50):
        value = engine.submit(tasks.add, value, step)
    assert fetch(engine, value) == sum(range(50))


def test_nested_references_are_errors(engine):
    ref = engine.publish(1)
    for hidden in ([[ref]], (ref, 1), {"key": ref}, [(1, ref)], [{"key": [ref]}]):
        with pytest.raises(TypeError, match="a reference is hidden in a"):
            engine.submit(tasks.add, hidden)
    with pytest.raises(TypeError, match="a reference is hidden in a"):
        engine.commute(engine.publish(1), tasks.plus, (ref,))


def test_the_same_object_published_twice_is_two_values(engine):
    array = np.zeros(20_000)
    first = engine.publish(array)
    second = engine.publish(array)
    engine.commute(first, tasks.plus, 1)
    assert [value.sum() for value in engine.fetch([first, second])] == [20_000, 0]


def test_the_number_of_results_must_be_as_announced(engine):
    with pytest.raises(ValueError, match=r"3 results|zip"):
        engine.fetch(engine.submit(tasks.split, np.arange(5), returns=2))


@pytest.mark.parametrize("code", [None, 0, 3])
def test_a_task_that_would_end_its_process_is_an_error(engine, code):
    what = "" if code is None else str(code)
    with pytest.raises(RuntimeError, match=rf"a task called sys\.exit\({what}\): networks"):
        engine.fetch([engine.submit(tasks.leave, code)])
    assert fetch(engine, engine.submit(tasks.add, 1, 2)) == 3


def test_commutative_updates_lose_nothing(engine):
    target = engine.publish(np.zeros(1000))
    made = [engine.commute(target, tasks.plus, engine.submit(tasks.add, n)) for n in range(1, 21)]
    after = engine.fetch(made)
    assert fetch(engine, target).tolist() == [210] * 1000
    # Each update's own reference holds what that very update made: 20 different partial sums.
    assert len({float(value[0]) for value in after}) == 20
    assert max(float(value[0]) for value in after) == 210


def test_readers_of_a_commuted_value_see_earlier_updates_only(engine):
    target = engine.publish(1)
    engine.commute(target, tasks.plus, 10)
    early = engine.submit(tasks.add, target, 0)
    engine.commute(target, tasks.plus, 100)
    assert fetch(engine, early) == 11
    assert fetch(engine, target) == 111
    assert engine.peek(target) == 111


def test_readers_wait_for_all_earlier_updates_in_any_order(engine, tmp_path):
    if not runs_tasks_side_by_side(engine):
        pytest.skip("no task runs before the gate is opened")
    target = engine.publish(1)
    gate = tmp_path / "gate"
    engine.commute(target, tasks.plus, engine.submit(tasks.wait_for, gate, 10))
    second = engine.commute(target, tasks.plus, 100)
    reader = engine.submit(tasks.add, target, 0)
    assert fetch(engine, second) == 101
    gate.touch()
    assert fetch(engine, target) == 111
    assert fetch(engine, reader) == 111


def test_tasks_do_not_see_each_others_changes_of_arguments(engine):
    if isinstance(engine, SerialEngine):
        pytest.skip("the serial engine hands out the values themselves")
    array = engine.publish(np.zeros(20_000))
    with (
        pytest.raises(ValueError, match="read-only")
        if isinstance(engine, RayEngine)
        else nullcontext()
    ):
        assert (
            engine.fetch([engine.submit(tasks.scribble, array) for _ in range(4)]) == [20_000] * 4
        )
    assert not fetch(engine, array).any()


def test_an_exception_is_raised_by_all_dependent_values(engine):
    def run():
        failed = engine.submit(tasks.fail, "broken here")
        return engine.fetch([engine.submit(tasks.add, 1), engine.submit(tasks.add, failed, 1)])

    with pytest.raises(KeyError, match="broken here"):
        run()
    assert fetch(engine, engine.submit(tasks.add, 1, 1)) == 2


def test_a_failure_passes_through_a_chain_longer_than_the_stack(engine):
    if isinstance(engine, SerialEngine):
        pytest.skip("the serial engine raises at once")
    value = engine.submit(tasks.fail, "at the very start")
    for _ in range(3000 if isinstance(engine, LocalEngine) else 100):  # COMPSs takes 25 ms a task
        value = engine.submit(tasks.add, value, 1)
    with pytest.raises(KeyError, match="at the very start"):
        fetch(engine, value)


def test_an_exception_in_an_update_comes_from_the_value(engine):
    def run():
        target = engine.publish(1)
        engine.commute(target, tasks.plus, engine.submit(tasks.fail, "no value"))
        engine.commute(target, tasks.plus, 1)
        return fetch(engine, target)

    with pytest.raises(KeyError, match="no value"):
        run()


def test_an_exception_that_cannot_be_pickled_keeps_its_message(engine):
    with pytest.raises(Exception, match="cannot travel"):
        fetch(engine, engine.submit(tasks.fail_strangely))


def test_a_task_has_the_threads_it_asks_for(engine):
    cpus = [1, 2, 1]
    refs = [engine.submit(tasks.threads, resources=Resources(cpus=n)) for n in cpus]
    assert engine.fetch(refs) == cpus


def test_values_without_references_are_available_to_tasks_submitted_before(engine):
    if isinstance(engine, SerialEngine):
        pytest.skip("tasks of the serial engine have run by then")
    array = engine.publish(np.ones(20_000))
    refs = [engine.submit(tasks.total, [array, array]) for _ in range(5)]
    del array
    assert all(value.sum() == 40_000 for value in engine.fetch(refs))


def test_a_function_of_the_package_that_is_no_task_is_an_error(engine):
    """COMPSs finds tasks by the names in one table, and would run others under the name of a
    program's function.
    """
    for function, name in ((calls.name_of, "name_of"), (calls.Failure.of, "of")):
        with pytest.raises(
            ValueError, match=(f"^compss_train.engines.calls.{name} is no task: add .* OTHERS in ")
        ):
            engine.submit(function, tasks.add)


def test_closures_and_lambdas_run(engine):
    factor = 3
    assert fetch(engine, engine.submit(lambda value: value * factor, 14)) == 42


def test_tasks_reach_the_coordinator_at_its_host(engine):
    if not runs_tasks_side_by_side(engine):
        pytest.skip("the coordinator waits for the task, and cannot answer")
    with socket.create_server((engine.host(), 0)) as server:
        server.settimeout(30)
        greeting = engine.submit(tasks.greet, server.getsockname())
        caller, _ = server.accept()
        with caller:
            assert caller.recv(5) == b"hello"
        assert fetch(engine, greeting) is None


def test_reserved_tasks_meet_or_are_an_error(engine, tmp_path):
    both = [Resources(), Resources()]
    if not runs_tasks_side_by_side(engine):
        with pytest.raises(
            ValueError,
            match=r"2 tasks are to run at the same time, but .* one at a time|tasks run one by one",
        ):
            engine.reserve(both)
        return
    engine.reserve(both)
    refs = [engine.submit(tasks.meet, tmp_path, n, 2) for n in range(2)]
    assert engine.fetch(refs) == [0, 1]


def test_what_has_arrived_is_known_without_waiting(engine, tmp_path):
    done = engine.submit(tasks.add, 1)
    assert fetch(engine, done) == 1
    if not engine.traits.interruptible:
        assert engine.arrived([done]) == []
        return
    assert engine.arrived([done]) == [done]
    if runs_tasks_side_by_side(engine):
        waiting = engine.submit(tasks.wait_for, tmp_path / "gate", 2)
        assert engine.arrived([waiting, done]) == [done]
        (tmp_path / "gate").touch()
        assert fetch(engine, waiting) == 2
        assert engine.arrived([waiting, done]) == [waiting, done]


@pytest.mark.parametrize(
    "make",
    [SerialEngine, lambda: LocalEngine(1), SimulatedEngine],
    ids=["serial", "local", "simulated"],
)
@pytest.mark.usefixtures("forked_processes")
def test_after_shutdown_every_call_is_an_error(make):
    with make() as engine:
        ref = engine.publish(1)
    engine.shutdown()
    for call in (
        lambda: engine.publish(1),
        lambda: engine.submit(tasks.add, 1),
        lambda: engine.commute(ref, tasks.plus, 1),
        lambda: engine.fetch([ref]),
        lambda: engine.peek(ref),
        lambda: engine.wait([ref], 0.0),
        lambda: engine.arrived([ref]),
        lambda: engine.reserve([Resources()]),
    ):
        with pytest.raises(EngineClosedError, match="shut down"):
            call()


def test_foreign_references_are_errors(engine, request):
    serial = isinstance(engine, SerialEngine)
    other = request.getfixturevalue("shared_local") if serial else SerialEngine()
    with pytest.raises(TypeError, match="not a reference of the"):
        engine.fetch([other.publish(1)])


def new_heartbeat(folder):
    (folder / "beats").write_bytes(bytes(liveness.SIZE))
    return Heartbeat(str(folder / "beats"))


def test_another_holder_of_the_file_reads_what_was_reported(tmp_path):
    ours = new_heartbeat(tmp_path)
    theirs = Heartbeat(ours.path)
    theirs.report(doing="round 3 on worker 1")
    theirs.report(20)
    theirs.report(7)
    assert (ours.beats, ours.samples, ours.doing) == (3, 27, "round 3 on worker 1")
    theirs.report(doing="é" * 500)
    assert ours.doing.startswith("é" * 100)
    assert os.path.getsize(ours.path) == 256


def test_tasks_report_to_the_heartbeat_of_their_process_only(tmp_path):
    liveness.beat(5)
    liveness.describe("nobody listens")
    own = new_heartbeat(tmp_path)
    with liveness.reporting_to(own.report):
        liveness.beat(5)
    liveness.beat(5)
    assert (own.beats, own.samples) == (1, 5)


def test_tasks_have_the_settings_that_the_program_has_when_their_scope_begins(engine):
    with changed(TOGETHER) as given, engine.scope():
        refs = [engine.submit(tasks.program_settings), engine.submit(tasks.program_settings)]
        assert engine.fetch(refs) == [given, given]
    with engine.scope():
        assert fetch(engine, engine.submit(tasks.program_settings)) == ProgramSettings()


def test_settings_that_cannot_be_sent_are_named_in_one_line(engine):
    if isinstance(engine, SerialEngine | SimulatedEngine):
        pytest.skip("tasks run in this process")

    def begin():
        with engine.scope():
            pass

    message = r"in other processes, where numpy.seterr\(over='call'\) has no effect"
    warn_once.cache_clear()
    with np.errstate(over="call", call=print):
        with pytest.warns(UserWarning, match=message):
            begin()
        begin()
