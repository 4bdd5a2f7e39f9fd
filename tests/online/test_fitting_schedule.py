"""fit_online with learning rates by batches, against a plain loop that steps its scheduler."""

import threading
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau

from compss_train import Schedule
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification
from tests.helpers.plain_loop import plain_steps
from tests.online.fits import batches_of, build_trainer, fit_online
from tests.online.simulations import simulate_rows

SAMPLES = 60
BATCHES = 9


def warm_up(batch):
    return min(1.0, (batch + 1) / 4) * 0.9**batch


SCHEDULES = {
    "function": (warm_up, partial(LambdaLR, lr_lambda=warm_up)),
    "steps": 2 * (partial(MultiStepLR, milestones=[2, 5], gamma=0.1),),
    "cycled momentum": 2 * (partial(OneCycleLR, max_lr=0.2, total_steps=BATCHES + 1),),
}


def trainer_of(local, schedule, workers=1, **options):
    unit = options.pop("unit", "batches")
    schedule = Schedule(schedule, unit=unit, **options)
    return build_trainer(local, workers, awkward_net(), SGD, schedule=schedule)


def rows(x, y):
    return [(x[:20], y[:20]), (x[20:33], y[20:33]), (x[33:], y[33:])]


def plain_parameters(make_scheduler, x, y):
    """Train in a plain loop; return the parameters, and the learning rate of the last step."""
    schedulers = []
    rates = []

    def make_optimizer(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        schedulers.append(make_scheduler(optimizer))
        return optimizer

    def after(net):
        rates.append(schedulers[0].get_last_lr()[0])
        schedulers[0].step()

    trained = plain_steps(awkward_net(), make_optimizer, batches_of(7, x, y), 3, after=after)
    assert len(rates) == BATCHES
    return trained, rates[-1]


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_by_batches_gives_the_bits_of_a_plain_loop(local, name, every):
    schedule, make_scheduler = SCHEDULES[name]
    x, y = classification(samples=SAMPLES)
    trainer = trainer_of(local, schedule)
    ours = fit_online(trainer, simulate_rows, rows(x, y), every=every)
    plain, last_rate = plain_parameters(make_scheduler, x, y)
    assert_same_bits(ours, plain)
    assert trainer.history[-1]["lr"] == last_rate


def test_the_next_fit_goes_on_and_each_worker_has_the_rates_of_its_batches(local):
    x, y = classification(samples=SAMPLES)
    trainer = trainer_of(local, warm_up, workers=2)
    for number in (1, 2):
        fit_online(trainer, simulate_rows, rows(x, y), max_batches=3)
        assert trainer.history[-1]["lr"] == 0.05 * warm_up(3 * number - 1)


def test_a_schedule_that_is_too_short_is_an_error_unless_the_fit_ends_before(local):
    x, y = classification(samples=SAMPLES)
    schedule = partial(OneCycleLR, max_lr=0.2, total_steps=4)
    with pytest.raises(ValueError, match=r"schedule= fails in batch 5 of a worker \(counted from"):
        fit_online(trainer_of(local, schedule), simulate_rows, rows(x, y), max_batches=6)
    with pytest.raises(ValueError, match=r"schedule= fails in batch 5 of a worker \(counted from"):
        fit_online(trainer_of(local, schedule), simulate_rows, rows(x, y))
    fit_online(trainer_of(local, schedule), simulate_rows, rows(x, y), max_batches=4)


def test_schedules_of_epochs_and_what_cannot_be_sent_are_refused(local):
    x, y = classification(samples=SAMPLES)
    for unit in ("epochs", "steps"):
        with pytest.raises(ValueError, match=r"fit_online has no epochs, .*unit='batches'"):
            fit_online(trainer_of(local, warm_up, unit=unit), simulate_rows, rows(x, y))
    with pytest.raises(ValueError, match="fit_online has no epochs"):
        fit_online(trainer_of(local, ReduceLROnPlateau, unit="epochs"), simulate_rows, rows(x, y))
    lock = threading.Lock()
    with pytest.raises(TypeError, match="schedule"):
        fit_online(
            trainer_of(local, lambda batch: 1.0 if lock.locked() else 0.5),
            simulate_rows,
            rows(x, y),
        )
