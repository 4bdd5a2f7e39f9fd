"""Online fits of networks that count, for tests of what goes wrong."""

from compss_train import BufferSpec, DistributedTrainer
from tests.online.simulations import COUNTING, counts, total

FIFO = BufferSpec("FIFO", 16)


def online(engine, net, simulate, inputs, *, workers=1, loss=total, optimizer=COUNTING, **options):
    """Fit a network that counts, with what matters little; return the trainer and how it ended."""
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net, optimizer, loss)
    given = {"buffer": FIFO, "batch_size": 5, "num_simulators": 1, "merge_every_batches": 1, "record_every": 0.02}
    try:
        trainer.fit_online(simulate, inputs, **(given | options))
    except BaseException as error:
        return trainer, error
    return trainer, None


def counted(engine, net, simulate, inputs, *, workers=1, **options):
    """Return the trainer of a fit that goes well, and how often each sample was trained on."""
    trainer, error = online(engine, net, simulate, inputs, workers=workers, **options)
    if error is not None:
        raise error
    return trainer, counts(trainer.get_parameters(), workers)


def split(samples, size):
    return [range(start, min(samples, start + size)) for start in range(0, samples, size)]
