"""The contestants of ``compss_throughput``; each function runs in an application of its own."""

from __future__ import annotations

import math
import time

import torch
from _common import Images, accuracy, load_images, network
from torch import nn

WORKERS = 2
BATCH = 100
LEARNING_RATE, MOMENTUM = 0.05, 0.9
WARM_UP_SAMPLES, WARM_UP_BLOCKS, WARM_UP_EPOCHS = 10_000, WORKERS, 2

Outcome = dict[str, float]


def ours(engine: str, blocks: int, samples: int, epochs: int, seed: int) -> Outcome:
    """Fit with workers that a fit before has started; building anew forgets what that one trained."""
    from compss_train import BlockedTensor, DistributedTrainer  # not at the top: dislib's application has no use

    images = load_images(samples)
    optimizer = {"optimizer": "sgd", "lr": LEARNING_RATE, "momentum": MOMENTUM}
    with DistributedTrainer(WORKERS, engine=engine, seed=seed, threads=1) as trainer:

        def fit(part: slice, grid: tuple[int, int], epochs: int) -> float:
            trainer.build(network("MLP", seed), optimizer, "cross_entropy")
            x, y = (BlockedTensor.from_array(array[part], grid) for array in (images.x, images.y))
            began = time.perf_counter()
            trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, progress=False)
            return time.perf_counter() - began

        fit(slice(WARM_UP_SAMPLES), (WARM_UP_BLOCKS, 1), WARM_UP_EPOCHS)
        seconds = fit(slice(None), (blocks, 1), epochs)
        reached = accuracy(trainer.predict(images.test_x), images.test_y)
    return _outcome(seconds, samples * epochs, reached)


def dislib(blocks: int, samples: int, epochs: int, seed: int, copies: bool) -> Outcome:
    """Fit as dislib's own tests do; unlike ours, its blocks are in the workers' files before the time starts.

    ``from_pt_tensor`` makes a block of a slice, which is pickled with all of the tensor that it is a slice of: then
    every task reads all images. With ``copies`` a task makes a tensor of its own of each block first.
    """
    images = load_images(samples)
    _fit_dislib(images, min(samples, WARM_UP_SAMPLES), WARM_UP_BLOCKS, WARM_UP_EPOCHS, seed, copies)
    seconds, net = _fit_dislib(images, samples, blocks, epochs, seed, copies)
    net.eval()
    with torch.no_grad():
        reached = accuracy(net(torch.from_numpy(images.test_x)), images.test_y)
    each = samples // blocks
    batches = _batches(each)
    # It leaves out what is over where samples divide neither into blocks nor blocks into batches.
    return _outcome(seconds, blocks * batches * (each // batches) * epochs, reached)


def _fit_dislib(
    images: Images, samples: int, blocks: int, epochs: int, seed: int, copies: bool
) -> tuple[float, nn.Module]:
    import dislib as ds
    from _compss_layers import Layers
    from dislib.pytorch import EncapsulatedFunctionsDistributedPytorch
    from pycompss.api.api import compss_barrier

    grid = (blocks, 1)
    x = ds.from_pt_tensor(torch.from_numpy(images.x[:samples]), shape=grid)
    y = ds.from_pt_tensor(torch.from_numpy(images.y[:samples]), shape=grid)
    if copies:
        x = x.apply_to_tensors(torch.clone)
    optimizer = {"lr": LEARNING_RATE, "momentum": MOMENTUM}
    trainer = EncapsulatedFunctionsDistributedPytorch(num_workers=WORKERS)
    trainer.build(
        Layers("MLP", seed), torch.optim.SGD, nn.CrossEntropyLoss, optimizer, num_gpu=WORKERS, num_nodes=1
    )
    compss_barrier()
    began = time.perf_counter()
    net = trainer.fit_synchronous_with_GPU(x, y, _batches(samples // blocks), epochs)
    return time.perf_counter() - began, net


def _batches(samples: int) -> int:
    """Return how many batches of at most ``BATCH`` a block has: as many as ours."""
    return math.ceil(samples / BATCH)


def _outcome(seconds: float, trained: int, reached: float) -> Outcome:
    return {"seconds": seconds, "samples_per_second": trained / seconds, "accuracy": reached}
