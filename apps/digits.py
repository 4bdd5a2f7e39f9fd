"""Train a small MLP on scikit-learn's digits with many workers."""

from __future__ import annotations

import argparse
import sys

import common
import datasets
import models


def prepare(arguments: argparse.Namespace) -> common.Problem:
    """Return the network and the digits, a fifth of them kept for the test."""
    return common.Problem(models.digits_mlp(), datasets.digits())


def main() -> int:
    """Run the app and return its exit code."""
    parser = common.make_parser(
        "digits",
        "Train on scikit-learn's digits: 1,797 images of 8 x 8 pixels in 10 classes.",
        epochs=20,
        batch_size=20,
        lr=0.1,
    )
    return common.run_app(parser, prepare)


if __name__ == "__main__":
    sys.exit(main())
