"""The kinds of fits that keep their bits: a table of those that differ in options, and functions
for the others.

A name stays, whatever the options are called: another checkout has the same kind under the same
name, in its own vocabulary. What is new gets a new name.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from compss_train import (
    BlockedTensor,
    BufferSpec,
    FileDataset,
    Gradients,
    PartialShuffle,
    Ragged,
    Samples,
    Schedule,
    TrainTransform,
)
from compss_train.training import PostLocal
from tests.same_bits import material
from tests.same_bits.fitting import Bits, Place, blocks, small_fit
from tests.same_bits.material import NEXT, ONE_HOT, TOKENS, WEIGHTS, X, Y

SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
STILL = {"shuffle": None, "shuffle_block_data": False}
BATCHES = {"unit": "batches", "every": 2}
VALIDATED = {"validation_data": (X[:20], Y[:20])}
FIRO = BufferSpec("FIRO", 24, threshold=9)
ARRIVING = {"merge": "commutative", "by_arrival": True}
CHARACTERS = {"net": material.Characters, "metric": None}
SERVED = {"merge": "parameter_server", "by_arrival": True}


def npz(folder, **options):
    return (FileDataset(material.write_npz(folder), **options),)


def cached(folder):
    return npz(folder, cache=folder / "cache", threads=2)


def parquet(folder):
    return (
        FileDataset(material.write_tables(folder, "parquet"), x=[f"f{n}" for n in range(6)], y="y"),
    )


def csv(folder):
    return (
        FileDataset(material.write_tables(folder, "csv"), x=[f"f{n}" for n in range(6)], y="y"),
    )


def arrays(folder):
    return X, Y


def frames(folder):
    import pandas

    frame = material.frame_of(pandas)
    return frame.drop(columns="y"), frame["y"]


def two_inputs(folder):
    x = {"left": blocks(X[:, :4]), "right": blocks(X[:, 4:])}
    return x, (blocks(Y), blocks(X[:, 0]))


def grid(folder):
    return BlockedTensor.from_array(X, (4, 2)), BlockedTensor.from_array(Y, (4, 2))


def ragged(folder):
    return blocks(Ragged(TOKENS), 5), blocks(Ragged(NEXT), 5)


def no_targets(folder):
    return (blocks(X),)


def drawing(folder):
    return (Samples(material.Named(), x="features", y="label", blocks=7),)


def loader(folder):
    return (DataLoader(material.Pairs(), batch_size=6, shuffle=True),)


def twenty_blocks(folder):
    return blocks(X, 19), blocks(Y, 19)


MANY = {"workers": 19, "data": twenty_blocks}
SHUFFLES = {
    "blocks shuffled": {},
    "blocks shuffled, samples in order": {"shuffle_block_data": False},
    "total shuffle": {"shuffle": "total"},
    "samples of blocks shuffled": {"shuffle": None},
    "no shuffle": STILL,
    "partial shuffle, one pool": {"shuffle": PartialShuffle(11)},
    "partial shuffle, two pools": {"shuffle": PartialShuffle(11, pools=2)},
    "partial shuffle, pools as large as blocks": {"shuffle": PartialShuffle()},
    "batches a block": {"num_batches_per_worker": 2},
    "one worker": {"workers": 1},
    "several workers a task": MANY,
    "several workers a task, total shuffle": {**MANY, "shuffle": "total"},
    "a grid of blocks": {"data": grid},
    "double precision": {
        "data": lambda folder: (blocks(X.astype("float64")), blocks(Y)),
        "net": material.double,
    },
}
MERGES = {
    "merged every two epochs": {"every": 2, "num_epochs": 3},
    "merged once": {"every": 0},
    "merged every block": {"every": 1, "unit": "blocks"},
    "merged every batch": {"every": 1, "unit": "batches"},
    "merged every two batches": BATCHES,
    "post-local": {**BATCHES, "every": PostLocal(epochs=1, then=4)},
    "rarer in later epochs": {**BATCHES, "every": lambda epoch: 1 + 3 * epoch},
    "commutative": ARRIVING,
    "commutative, halving": {**ARRIVING, "rule": "halving"},
    "commutative, blocks": {**ARRIVING, "unit": "blocks"},
    "commutative, outer optimizer": {**ARRIVING, "outer_optimizer": NESTEROV},
    "commutative, bf16": {**ARRIVING, "dtype": "bf16"},
    "commutative, int8, optimizers reset": {
        **ARRIVING,
        "dtype": "int8",
        "optimizer_state": "reset",
    },
    "commutative, validated": {**ARRIVING, **VALIDATED},
    "parameter server": SERVED,
    "parameter server, batches": {**SERVED, **BATCHES},
    "parameter server, outer optimizer": {**SERVED, **BATCHES, "outer_optimizer": NESTEROV},
    "outer optimizer": {"outer_optimizer": NESTEROV, **VALIDATED},
    "outer optimizer, batches": {"outer_optimizer": NESTEROV, **BATCHES},
    "outer optimizer, Adam": {"outer_optimizer": {"optimizer": "adam", "lr": 0.02}},
    "merged in bf16": {"dtype": "bf16"},
    "merged in int8": {"dtype": "int8", **BATCHES},
    "merged in int8, outer optimizer": {"dtype": "int8", "outer_optimizer": NESTEROV},
    "averaged parameters": {"averaging": "ema", **VALIDATED, **BATCHES},
    "averaged parameters, decay": {"averaging": 0.5, "outer_optimizer": NESTEROV, **VALIDATED},
    "averaged parameters, by steps": {
        "averaging": 0.9,
        "averaging_unit": "steps",
        **VALIDATED,
        **BATCHES,
    },
    "optimizers averaged": {"optimizer_state": "average", **BATCHES},
    "optimizers reset": {"optimizer_state": "reset", **BATCHES},
    "optimizers averaged, int8, several workers a task": {
        "optimizer_state": "average",
        "dtype": "int8",
        **MANY,
    },
    "preset auto": {"merge": "auto", "batch_size": None, "net": material.mlp, "optimizer": SGD},
    "preset diloco": {"merge": "diloco"},
    "preset slowmo": {"merge": "slowmo", "optimizer": SGD},
    "preset post-local": {"merge": "post_local", "optimizer": SGD},
}
DATA = {
    "arrays": {"data": arrays},
    "frames": {"data": frames},
    "files": {"data": npz},
    "files, partial shuffle": {"data": npz, "shuffle": PartialShuffle(11, pools=2)},
    "files, one in memory": {"data": functools.partial(npz, file_buffer=1), **STILL},
    "files, cached": {"data": cached, "num_epochs": 3},
    "files, buffered": {"data": npz, "buffer": FIRO},
    "files, weighted": {"data": functools.partial(npz, weight="w")},
    "files, several merges an epoch": {"data": npz, **BATCHES},
    "files of Parquet": {"data": parquet},
    "files of CSV": {"data": csv},
    "a data set": {"data": lambda folder: (Samples(material.Pairs(), blocks=7),)},
    "a data set, total shuffle": {"data": lambda folder: (material.Pairs(),), "shuffle": "total"},
    "a data set that draws": {"data": drawing},
    "a data loader": {"data": loader, "batch_size": None},
    "an endless data set": {
        "data": lambda folder: (Samples(material.Stream(), blocks=3, size=57),),
        **STILL,
    },
    "sequences": {"data": ragged, **CHARACTERS},
    "sequences by length": {"data": ragged, "bucket_by_length": "x", **CHARACTERS},
    "sequences, total shuffle": {"data": ragged, "shuffle": "total", **CHARACTERS},
    "several inputs": {
        "data": two_inputs,
        "net": material.TwoInputs,
        "loss": material.two_losses,
        "metric": None,
    },
    "no targets": {
        "data": no_targets,
        "net": lambda: material.mlp(6),
        "loss": "mse",
        "metric": None,
    },
    "collated": {"data": arrays, "build": {"collate": material.collated}},
    "sample weights": {"sample_weight": WEIGHTS},
    "sample weights, total shuffle, batches": {
        "sample_weight": WEIGHTS,
        "shuffle": "total",
        **BATCHES,
    },
    "sample weights and class weights": {
        "sample_weight": WEIGHTS,
        "build": {"class_weight": [1.0, 3.0, 0.5]},
    },
    "validated": VALIDATED,
}
BUFFERS = {
    "FIFO": {"buffer": BufferSpec("FIFO", 16)},
    "FIFO, batches": {"buffer": BufferSpec("FIFO", 16), **BATCHES},
    "FIRO": {"buffer": FIRO},
    "FIRO, total shuffle": {"buffer": FIRO, "shuffle": "total"},
    "FIRO, batches": {"buffer": FIRO, **BATCHES},
    "FIRO, pseudo-epochs": {"buffer": BufferSpec("FIRO", 57, threshold=9, passes=2)},
    "FIRO, weighted": {"buffer": FIRO, "sample_weight": WEIGHTS},
    "FIRO, several workers a task": {"buffer": FIRO, **MANY},
}
SKIPPING = {"training_step": material.nan_step, "gradients": Gradients(on_nan="skip")}
CLOSURE = {"optimizer": torch.optim.LBFGS, "lr": 0.1, "max_iter": 2}
STEPS = {
    "transform that draws": {"build": {"transform": material.noise}},
    "transform that draws, total shuffle": {
        "build": {"transform": material.noise},
        "shuffle": "total",
    },
    "transform that draws from numpy": {"build": {"transform": material.noise_of_numpy}},
    "augmentation": {"build": {"train_transform": material.mixed_up, "transform": material.halves}},
    "augmentation by sample": {
        "build": {"train_transform": TrainTransform(material.noisy_sample, by_sample=True)}
    },
    "augmentation in a buffer": {"build": {"train_transform": material.mixed_up}, "buffer": FIRO},
    "gradients accumulated": {"build": {"gradients": Gradients(accumulate=2)}},
    "gradients accumulated, batches": {"build": {"gradients": Gradients(accumulate=3)}, **BATCHES},
    "gradients clipped by norm": {"build": {"gradients": Gradients(clip_norm=0.5)}},
    "gradients clipped by value": {
        "build": {"gradients": Gradients(clip_value=0.05, accumulate=2)}
    },
    "batches without finite loss skipped": {"build": SKIPPING, "metric": None},
    "schedule": {"build": {"schedule": material.falling}},
    "schedule inside epochs": {
        "build": {"schedule": Schedule(material.falling, steps=3)},
        **BATCHES,
    },
    "schedule of torch": {"build": {"schedule": functools.partial(StepLR, step_size=1, gamma=0.5)}},
    "schedule of torch inside epochs": {
        "build": {
            "schedule": Schedule(functools.partial(OneCycleLR, max_lr=0.1, total_steps=9), steps=4)
        }
    },
    "bf16": {"build": {"precision": "bf16"}},
    "fp16": {"build": {"precision": "fp16"}, "net": material.mlp, **BATCHES},
    "convolution, channels last": {
        "net": material.conv,
        "build": {"memory_format": "channels_last"},
    },
    "own step": {"build": {"training_step": material.measuring_step}, "optimizer": SGD},
    "two optimizers": {
        "net": lambda: {
            "generator": material.generator(),
            "discriminator": material.discriminator(),
        },
        "optimizer": {"generator": {"optimizer": "adam", "lr": 1e-3}, "discriminator": SGD},
        "loss": None,
        "metric": None,
        "build": {"training_step": material.gan_step, "gradients": Gradients(clip_norm=1.0)},
        "optimizer_state": "average",
    },
    "Lightning": {"net": material.Lightning, "optimizer": None, "loss": None, "metric": None},
    "groups of parameters": {"optimizer": material.two_groups},
    "optimizer of torch": {
        "optimizer": {"optimizer": torch.optim.AdamW, "lr": 0.01, "weight_decay": 0.1}
    },
    "optimizer with a closure": {"optimizer": CLOSURE, "net": material.mlp, "num_epochs": 1},
    **{
        f"optimizer {name}": {"optimizer": {"optimizer": name, "lr": 0.01}, "num_epochs": 1}
        for name in ("rmsprop", "adagrad", "adamax", "adadelta", "nadam")
    },
    **{
        f"loss {name}": {
            "loss": name,
            "metric": ["mse", "mae", "mre", "categorical_accuracy"],
            "num_epochs": 1,
            "net": material.softmax_net,
            "data": lambda folder: (blocks(X), blocks(ONE_HOT)),
        }
        for name in ("mse", "sce", "bce", "cce", "dice")
    },
    "loss a module": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1), "num_epochs": 1},
}


def from_table(place: Place, entry: Mapping[str, Any]) -> Bits:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that of more samples held than there are
        return small_fit(place, **entry)


KINDS: dict[str, Callable[[Place], Bits]] = {
    name: functools.partial(from_table, entry=entry)
    for table in (SHUFFLES, MERGES, DATA, BUFFERS, STEPS)
    for name, entry in table.items()
}
