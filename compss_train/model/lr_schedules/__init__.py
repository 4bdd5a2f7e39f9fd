"""Schedules: the learning rate by the epoch, as a function says or as torch's schedulers have it.

There is one clock, the epoch, so that a schedule means the same for any number of workers, however often they
merge. The coordinator steps the scheduler over an optimizer that trains nothing, and tells each training task what
the scheduler makes of the hyperparameters in its epochs: the learning rate, and what else it changes, such as the
momentum that OneCycleLR cycles. Nothing of the schedule is in a worker's state.
"""

from compss_train.model.lr_schedules.base import Hyperparameters, LrSchedule
from compss_train.model.lr_schedules.make import ScheduleSpec, make_schedule

__all__ = ["Hyperparameters", "LrSchedule", "ScheduleSpec", "make_schedule"]
