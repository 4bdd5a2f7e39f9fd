"""What simulations have found, each as the test that ``make simulate`` printed."""

from compss_train.engines.simulated import Fault
from tests.simulation.simulate import simulate


def test_seed_157():
    # there are 2 checkpoints, and 1 were to be kept
    simulate(157, [Fault("kill", "disk", 23, 0.0)])


def test_seed_558():
    # ['.round-000000.vm.4194305.old'] are left in the folder of checkpoints
    simulate(558, [Fault("kill", "disk", 24, 0.0)])
