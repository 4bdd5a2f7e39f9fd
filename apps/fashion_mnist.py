"""Train a network on Fashion-MNIST with many workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import common
import datasets
import models


def prepare(arguments: argparse.Namespace) -> common.Problem:
    """Return the chosen network and the images, which stay bytes until a worker scales them."""
    net = models.image_cnn() if arguments.model == "cnn" else models.image_mlp()
    return common.Problem(net, datasets.fashion_mnist(arguments.data), models.normalize_images)


def main() -> int:
    """Run the app and return its exit code."""
    parser = common.make_parser(
        "fashion_mnist", "Train on Fashion-MNIST: 60,000 images of clothes in 10 classes."
    )
    parser.add_argument(
        "--model",
        choices=("mlp", "cnn"),
        default="mlp",
        help="the network: MLP or convolutional (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=datasets.FASHION_MNIST_FOLDER,
        metavar="FOLDER",
        help="folder with the four idx files, gzipped (default: %(default)s)",
    )
    return common.run_app(parser, prepare)


if __name__ == "__main__":
    sys.exit(main())
