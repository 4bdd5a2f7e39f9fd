"""The networks of the apps, and how their images are scaled.

They are not in the scripts themselves: a COMPSs worker cannot unpickle what a main script defines.
"""

from __future__ import annotations

import torch
from torch import nn

FASHION_MNIST_MEAN = 72.94
"""Mean of the training images' pixels, which are 0 to 255."""
FASHION_MNIST_STD = 90.02
"""Standard deviation of the same pixels."""


def normalize_images(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images (N, H, W) as floats (N, 1, H, W).

    Over the data they have the mean 0 and the standard deviation 1.
    """
    return images.unsqueeze(1).float().sub_(FASHION_MNIST_MEAN).div_(FASHION_MNIST_STD)


def image_mlp() -> nn.Module:
    """Return an MLP 784-1024-1024-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def image_cnn() -> nn.Module:
    """Return a small CNN: twice convolution, batch norm, ReLU and pooling, then a linear layer."""
    return nn.Sequential(
        *_convolution(1, 16), *_convolution(16, 32), nn.Flatten(), nn.Linear(32 * 7 * 7, 10)
    )


def _convolution(channels_in: int, channels_out: int) -> list[nn.Module]:
    # Batch norm subtracts the mean, so that a bias before it would do nothing.
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]


def digits_mlp() -> nn.Module:
    """Return an MLP 64-128-10."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
