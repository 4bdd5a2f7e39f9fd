import numpy as np
import pytest

from compss_train.engines.base import Failure
from compss_train.engines.compss.perform import Call, Packed, Slot, perform, update
from compss_train.exceptions import WorkerLostError
from tests.engines import tasks


def call(function, *args):
    return Packed.of(Call(function, args, gpu=False))


def test_inputs_fill_the_slots():
    inputs = [Packed.of(1), Packed.of(10), np.array([100])]  # the last as another library's tasks return it
    assert perform(1, 1, call(tasks.add, Slot(2), 1000, Slot(0)), inputs).value() == [1101]
    assert perform(1, 1, call(tasks.total, [Slot(0), Slot(1)]), inputs).value() == 11


def test_several_results_are_packed_each():
    head, tail, text = perform(3, 1, call(tasks.split, Slot(0)), [Packed.of(np.arange(4))])
    assert (head.value().tolist(), tail.value().tolist(), text.value()) == ([0], [1, 2, 3], "text")


def test_an_exception_is_each_result():
    results = perform(3, 1, call(tasks.fail, "broken"), [])
    assert len(results) == 3
    for result in results:
        error = result.value().exception()
        assert isinstance(error, KeyError)
        assert "in fail" in str(error.__cause__)


def test_a_failure_passes_on_untouched():
    failed = perform(1, 1, call(tasks.fail, "at first"), [])
    later = perform(2, 1, call(tasks.split, Slot(0)), [failed])
    assert [result.value() for result in later] == [failed.value()] * 2


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_nothing_leaves_a_task(kind):
    def leave():
        raise kind("out")

    assert isinstance(perform(1, 1, call(leave), []).value(), Failure)


def test_what_cannot_be_loaded_or_packed_is_a_failure():
    unloadable = perform(1, 1, call(tasks.add, tasks.Unloadable()), [])
    assert isinstance(unloadable.value().exception(), ImportError)
    unpackable = perform(2, 1, call(tasks.good_and_bad), [])
    assert all(isinstance(result.value(), Failure) for result in unpackable)


def test_what_compss_lost_is_told_to_be_lost():
    with pytest.raises(WorkerLostError, match=r"COMPSs lost a task.*compss-train doctor"):
        raise perform(1, 1, call(tasks.add, Slot(0)), [None]).value().exception()


def test_an_update_replaces_the_target_and_returns_it():
    target = Packed.of(1)
    made = update(1, call(tasks.plus, Slot(0), Slot(1)), target, [Packed.of(5)])
    assert made.value() == target.value() == 6
    update(1, call(tasks.plus, Slot(0), Slot(1)), target, [perform(1, 1, call(tasks.fail, "no"), [])])
    assert isinstance(target.value(), Failure)


def test_a_task_has_its_threads():
    assert [perform(1, cpus, call(tasks.threads), []).value() for cpus in (1, 2)] == [1, 2]
