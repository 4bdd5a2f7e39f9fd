"""Learning-rate schedules: a function of the epoch, or a torch scheduler.

The epoch is the only clock, so that a schedule means the same for any number of workers and rounds: a schedule is
stepped once an epoch, or ``Schedule.steps`` times, at equal fractions of each worker's batches. The coordinator
steps the scheduler with an optimizer that trains nothing, and sends each training task the hyperparameters of its
epochs: the learning rate, and others that the scheduler changes, such as the momentum that OneCycleLR cycles. No
part of the schedule is in a worker's state.
"""

from compss_train.model.lr_schedules.factory import Schedule, ScheduleSpec, make_schedule
from compss_train.model.lr_schedules.schedules import Hyperparameters, LrSchedule, TimedHyperparameters

__all__ = ["Hyperparameters", "LrSchedule", "Schedule", "ScheduleSpec", "TimedHyperparameters", "make_schedule"]
