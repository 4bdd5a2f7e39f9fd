"""The run file that ``compss-train fit --example`` prints, and the function that makes its data."""

import numpy as np
from numpy.typing import NDArray

EXAMPLE = """\
# What compss-train trains, and how:   compss-train fit spirals.toml
# This file trains as it is. File names, and your own modules, are relative to this file.
# Lines that begin with # show more options. In all sections, "import:module:name" is a Python object,
# { import = "module:name", ... } the result of calling it, and { partial = "module:name", ... } a call for later.

[trainer]                        # arguments of DistributedTrainer
num_workers = 2
seed = 0
# engine = "local"               # "serial", "local" or "compss"; the default depends on how the command was started

[network]                        # a class or function, called with the other keys, such as import = "models:Net"
import = "torch.nn:Sequential"
arguments = [
    { import = "torch.nn:Linear", in_features = 2, out_features = 64 },
    { import = "torch.nn:ReLU" },
    { import = "torch.nn:Linear", in_features = 64, out_features = 64 },
    { import = "torch.nn:ReLU" },
    { import = "torch.nn:Linear", in_features = 64, out_features = 3 },
]

[data]                           # a function that returns x and y
import = "compss_train.example:spirals"
samples = 3000
blocks = 8                       # x and y are cut into this many blocks, which are distributed over the workers
# x = "images.npy"               # or files with one array each: .npy, .npz, .pt, .h5
# y = "labels.npy"
# files = "train/*.npz"          # or many files, which workers read: arguments of FileDataset
# files = "train/*.parquet"      # or tables: x = ["a", "b"] and y = "c" are columns

[validation]                     # evaluated after every round; keys as in [data], or:
fraction = 0.2                   # of the samples of [data], drawn by the seed

[build]                          # arguments of DistributedTrainer.build
optimizer = { optimizer = "adam", lr = 0.01 }
loss = "cross_entropy"           # or { import = "torch.nn:CrossEntropyLoss", label_smoothing = 0.1 }
metric = "accuracy"
# transform = "import:models:scale"

[fit]                            # arguments of DistributedTrainer.fit
num_epochs = 20
batch_size = 50
# merge = { unit = "blocks" }    # merge workers after every block; by default after every epoch
# shuffle = "total"              # "none" is Python's None
# early_stopping = { patience = 5 }

[output]
folder = "runs/spirals"          # by default runs/ and the name of this file
csv = true                       # history.csv, besides history.jsonl
# checkpoint = { every = 5 }     # by default every round; false for no checkpoints
# tensorboard = true
"""


def spirals(
    samples: int = 3000, classes: int = 3, noise: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return points on the arms of a spiral in the plane, (samples, 2), and the arm of each point, (samples,)."""
    random = np.random.default_rng(seed)
    arm = random.integers(classes, size=samples)
    along = random.uniform(size=samples)
    angle = 2 * np.pi * (arm / classes + along) + noise * random.normal(size=samples)
    points = along * np.stack([np.cos(angle), np.sin(angle)])
    return points.T.astype(np.float32), arm
