"""Online fits with default options: of networks that count samples, and of networks like a plain
PyTorch loop's.
"""

import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations
from tests.helpers.models import SGD
from tests.helpers.plain_loop import plain_steps
from tests.online.simulations import COUNTING_SGD, sample_counts, sum_loss

FIFO = BufferSpec("FIFO", 16)
DEFAULTS = {"buffer": FIFO, "batch_size": 5, "record_every": 0.02}
MERGE = {"every", "outer_optimizer", "optimizer_state", "averaging", "averaging_unit"}
SIMULATIONS = {
    "jobs",
    "count",
    "retries",
    "timeout",
    "steps",
    "pairing",
    "senders",
    "address",
    "token",
}


def online(trainer, simulate, inputs, **options):
    """Fit with options of ``fit_online``, of its simulations and of its merge."""
    simulations = Simulations(
        simulate, inputs, **{name: options.pop(name) for name in SIMULATIONS & {*options}}
    )
    merge = Merge(**{name: options.pop(name) for name in MERGE & {*options}})
    return trainer.fit_online(simulations, merge=merge, **(DEFAULTS | options))


def run_fit(
    engine,
    net,
    simulate,
    inputs,
    *,
    workers=1,
    loss=sum_loss,
    optimizer=COUNTING_SGD,
    transform=None,
    **options,
):
    """Fit a network that counts samples; return the trainer and the exception or None."""
    trainer = build_trainer(engine, workers, net, optimizer, loss, seed=0, transform=transform)
    try:
        online(trainer, simulate, inputs, **options)
    except BaseException as error:
        return trainer, error
    return trainer, None


def fit_and_count(engine, net, simulate, inputs, *, workers=1, **options):
    """Return the trainer of a successful fit, and how often each sample was trained on."""
    trainer, error = run_fit(engine, net, simulate, inputs, workers=workers, **options)
    if error is not None:
        raise error
    return trainer, sample_counts(trainer.get_parameters(), workers)


def split_range(samples, size):
    return [range(start, min(samples, start + size)) for start in range(0, samples, size)]


def build_trainer(
    engine, workers, net, optimizer=SGD, loss="cross_entropy", metric=None, seed=3, **options
):
    trainer = DistributedTrainer(workers, engine=engine, seed=seed, threads=1)
    trainer.build(net, optimizer, loss, metric, **options)
    return trainer


def fit_online(trainer, simulate, inputs, **options):
    """Fit with default options and batches of 7."""
    return online(trainer, simulate, inputs, **({"batch_size": 7} | options))


def plain_loop(net, optimizer, batches, loss=nn.functional.cross_entropy, seed=3):
    """Train in a plain PyTorch loop on batches of (x, y)."""
    steps = ((x, x if y is None else y) for x, y in batches)
    return plain_steps(net, optimizer, steps, seed, loss)


def batches_of(size, *arrays):
    """Iterate over the batches of arrays."""
    tensors = [torch.from_numpy(array) for array in arrays]
    for start in range(0, len(arrays[0]), size):
        parts = [tensor[start : start + size].clone() for tensor in tensors]
        yield parts[0], parts[1] if len(parts) > 1 else None
