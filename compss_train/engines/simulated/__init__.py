"""The simulated engine, for tests: tasks run in this thread, in virtual time, and fail as a plan of faults says."""

from compss_train.engines.simulated.engine import SimulatedEngine
from compss_train.engines.simulated.events import Events
from compss_train.engines.simulated.faults import CoordinatorKilled, Fault, FaultPlan, ProcessDied

__all__ = ["CoordinatorKilled", "Events", "Fault", "FaultPlan", "ProcessDied", "SimulatedEngine"]
