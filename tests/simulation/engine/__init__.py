"""The simulated engine, for tests: tasks run in this thread, in virtual time, and fail as a plan of
faults says.
"""

from tests.simulation.engine.engine import SimulatedEngine
from tests.simulation.engine.events import Events
from tests.simulation.engine.faults import CoordinatorKilled, Fault, FaultPlan, ProcessDied

__all__ = ["CoordinatorKilled", "Events", "Fault", "FaultPlan", "ProcessDied", "SimulatedEngine"]
