"""A few seeds of what ``make simulate`` runs many of; what it has found; and how it reports."""

import pytest

from compss_train.engines.simulated import Fault
from tests.simulation.shrinking import pasted, shrunk
from tests.simulation.simulate import faults_of, simulate


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_a_few_seeds(first):
    for seed in range(first, first + 20):
        simulate(seed)


def test_a_seed_repeats_itself():
    assert simulate(11) == simulate(11)
    assert faults_of(11) == faults_of(11) != faults_of(12)


def test_a_failure_is_shrunk_to_the_fewest_faults():
    faults = [Fault("die", "task", number) for number in range(20)]
    needed = {faults[3], faults[17]}
    assert shrunk(faults, lambda kept: needed <= set(kept)) == [faults[3], faults[17]]
    assert shrunk(faults, lambda kept: True) == []


def test_a_failure_is_printed_as_a_test():
    text = pasted(7, [Fault("late", "task", 3, 60.0)], RuntimeError("first\nlast line"))
    namespace = {"Fault": Fault, "simulate": lambda *given: namespace.update(given=given)}
    exec(text, namespace)
    namespace["test_seed_7"]()
    assert namespace["given"] == (7, [Fault("late", "task", 3, 60.0)])
    assert "# last line" in text
