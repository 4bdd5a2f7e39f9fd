"""Networks, data, steps and transforms of the kinds: other checkouts have the same ones, so change
nothing.

The numbers are drawn here and not in ``tests.helpers``, whose networks may change with their tests.
"""

import itertools
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SIZES = (13, 20, 7, 17)
"""Samples in each file."""
BOUNDS = (0, *itertools.accumulate(SIZES))


def _classification() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    y = random.integers(0, 3, 57)
    centres = random.normal(size=(3, 6)) * 2
    return (centres[y] + random.normal(size=(57, 6))).astype(np.float32), y


X, Y = _classification()
ONE_HOT = np.eye(3, dtype=np.float32)[Y]
WEIGHTS = np.random.default_rng(6).uniform(0.1, 3, 57).astype(np.float32)
TOKENS = [np.random.default_rng(n).integers(1, 9, 2 + n % 7) for n in range(41)]
NEXT = [np.roll(each, -1) for each in TOKENS]


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def awkward() -> nn.Sequential:
    """BatchNorm has floating and integer buffers, Dropout draws random numbers."""
    torch.manual_seed(12)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 3, bias=False),
    )


def double() -> nn.Module:
    return awkward().double()


def softmax_net() -> nn.Sequential:
    return nn.Sequential(mlp(), nn.Softmax(1))


def conv() -> nn.Sequential:
    torch.manual_seed(13)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


class Characters(nn.Module):
    """Reads sequences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(9, 6)
        self.net = nn.GRU(6, 8, batch_first=True)
        self.last = nn.Linear(8, 9)

    def forward(self, x):
        return self.last(self.net(self.embedding(x))[0]).transpose(1, 2)


class TwoInputs(nn.Module):
    """Takes two inputs, and returns a tuple of classes and values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(14)
        self.left = nn.Linear(4, 8)
        self.right = nn.Linear(2, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, left, right):
        out = self.last(torch.tanh(self.left(left) + self.right(right)))
        return out[:, :3], out[:, 3]


def two_losses(output, target):
    return functional.cross_entropy(output[0], target[0]) + functional.mse_loss(
        output[1], target[1]
    )


def generator() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))


def discriminator() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


class Lightning(nn.Module):
    """In the style of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = awkward()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("twice", 2 * loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def measuring_step(model, batch, context):
    output = model(batch[0])
    context.log("largest", output.detach().abs().max())
    return {"loss": context.loss(output, batch[1]), "output": output, "step": float(context.number)}


def gan_step(model, batch, context):
    fake = model["generator"](torch.randn(len(batch[0]), 4, device=batch[0].device))
    real_loss = functional.softplus(-model["discriminator"](batch[0])).mean()
    loss = real_loss + functional.softplus(model["discriminator"](fake.detach())).mean()
    context.update("discriminator", loss)
    if context.number % 2 == 0:
        context.update("generator", functional.softplus(-model["discriminator"](fake)).mean())
    return {"loss": loss}


def nan_step(model, batch, context):
    loss = context.loss(model(batch[0]), batch[1])
    return loss * float("nan") if context.number % 3 == 1 else loss


def noise(x):
    return x + torch.randn_like(x)


def noise_of_numpy(x):
    return x + torch.from_numpy(np.random.normal(size=x.shape).astype(np.float32))


def mixed_up(x, y):
    order = torch.randperm(len(x))
    return (x + x[order]) / 2, y


def noisy_sample(x, y):
    return x * torch.rand(()), y


def halves(x):
    return x / 2


def collated(samples):
    """Make batches of pairs, or of x alone."""
    if not isinstance(samples[0], tuple):
        return torch.stack([torch.as_tensor(x) for x in samples]) * 2
    return collated([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])


def two_groups(parameters):
    first, *others = parameters
    return torch.optim.SGD(
        [{"params": [first], "lr": 0.01}, {"params": others, "momentum": 0.5}], lr=0.1
    )


def falling(epoch: float) -> float:
    return 1 / (1 + epoch)


class Pairs(Dataset):
    """(x, y) by number."""

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number], Y[number]


class Named(Pairs):
    """Draws from torch's generator."""

    def __getitem__(self, number):
        return {"features": torch.from_numpy(X[number]) + torch.randn(6), "label": int(Y[number])}


class Stream(IterableDataset):
    """The samples in their order."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(
            0 if info is None else info.id, len(X), 1 if info is None else info.num_workers
        ):
            yield X[number], Y[number]


def write_npz(folder: Path) -> str:
    for number, (start, stop) in enumerate(itertools.pairwise(BOUNDS)):
        rows = slice(start, stop)
        np.savez(folder / f"{number}.npz", x=X[rows], y=Y[rows], w=WEIGHTS[rows])
    return str(folder / "*.npz")


def write_tables(folder: Path, suffix: str) -> str:
    import pandas

    for number, (start, stop) in enumerate(itertools.pairwise(BOUNDS)):
        frame = frame_of(pandas)[start:stop]
        if suffix == "csv":
            frame.to_csv(folder / f"{number}.csv", index=False)
        else:
            frame.to_parquet(folder / f"{number}.parquet", row_group_size=5)
    return str(folder / f"*.{suffix}")


def frame_of(library):
    return library.DataFrame({**{f"f{n}": X[:, n] for n in range(6)}, "y": Y})


def simulate(numbers):
    """A simulation."""
    for number in numbers:
        yield X[number], Y[number]
