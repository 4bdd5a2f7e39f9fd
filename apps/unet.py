"""A U-Net that marks discs in noisy images, with images and masks flipped and turned together.

python apps/unet.py --epochs 8
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn.functional import max_pool2d

from compss_train import DistributedTrainer, TrainTransform

SIZE = 24


def made_images(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (number, 1, size, size) with a disc on noise and stripes, and its mask."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    centres = random.uniform(5, SIZE - 5, (number, 2, 1, 1))
    radii = random.uniform(3, 6, (number, 1, 1))
    mask = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2 < radii**2
    stripes = 30 * np.sin(columns * random.uniform(0.5, 2, (number, 1, 1)))
    pixels = 100 + 60 * mask + stripes + random.normal(0, 25, (number, SIZE, SIZE))
    return pixels.clip(0, 255).astype(np.uint8)[:, None], mask.astype(np.float32)[:, None]


def turned(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flip and turn one image and its mask."""
    both = torch.cat([x.float(), mask])
    if torch.rand(()) < 0.5:
        both = both.flip(-1)
    both = both.rot90(int(torch.randint(4, ())), (-2, -1))
    return both[:1] + 10 * torch.randn(()), both[1:]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / 255 - 0.5


def convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Ronneberger et al. 2015, arXiv 1505.04597, with two levels below the first."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolutions(1, width), convolutions(width, 2 * width)])
        self.bottom = convolutions(2 * width, 4 * width)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(2 * n * width, n * width, 2, stride=2) for n in (2, 1)]
        )
        self.joined = nn.ModuleList([convolutions(2 * n * width, n * width) for n in (2, 1)])
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for a batch."""
        kept = []
        for level in self.down:
            kept.append(level(x))
            x = max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([up(x), kept.pop()], dim=1))
        return torch.sigmoid(self.last(x))


def overlap(output: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Intersection over union."""
    predicted = output > 0.5
    true = mask > 0.5
    intersection = (predicted & true).sum(dim=(1, 2, 3))
    union = (predicted | true).sum(dim=(1, 2, 3))
    return (intersection / union.clamp(min=1)).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default="auto", choices=["auto", "serial", "local", "compss"])
    arguments = parser.parse_args()

    torch.manual_seed(0)
    with DistributedTrainer(arguments.workers, engine=arguments.engine, seed=0) as trainer:
        augmented = TrainTransform(turned, by_sample=True)
        adam = {"optimizer": "adam", "lr": 0.01}
        metrics = {"overlap": overlap}
        transforms = {"transform": scaled, "train_transform": augmented}
        trainer.build(UNet(), adam, "dice", metrics, **transforms)
        x, y = made_images(320, 0)
        trainer.fit(x, y, num_epochs=arguments.epochs, batch_size=16, progress=False)
        test_x, test_y = made_images(100, 1)
        measured = trainer.evaluate(test_x, test_y)
    print(f"test dice loss {measured['loss']:.3f}, overlap {measured['overlap']:.3f}")


if __name__ == "__main__":
    main()
