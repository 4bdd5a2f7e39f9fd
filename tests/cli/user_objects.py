"""Objects that the run files of tests name by import path."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train.callbacks import Callback
from tests.helpers.models import classification

USER_OBJECTS = __name__


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def data(samples: int = 60, double: bool = False):
    x, y = classification(samples)
    return (x.astype(np.float64) if double else x), y


def labelled(classes):
    x, y = data()
    return x, y % classes


def weighted():
    x, y = data()
    return x, y, np.linspace(0, 2, len(x))


def nans(first: int = 0):
    """Return data that are NaN from a sample on."""
    x, y = data()
    x[first:] = np.nan
    return x, y


def to_float(x):
    return x.float()


def broken(*batch):
    raise RuntimeError("this function is broken")


def same():
    return nn.Linear(6, 6)


def pets():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def single():
    return nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))


class Named(nn.Linear):
    """A network whose outputs have names, as those of Hugging Face."""

    def forward(self, x):
        return {"logits": super().forward(x)}


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        raise RuntimeError("the network is broken here")


class Disturb(Callback):
    """Does something to the folder of the run after its second round."""

    def __init__(self, folder, how):
        self.folder = Path(folder)
        self.how = how

    def on_round_end(self, trainer, record):
        if record["round"] == 1 and self.how == "moved":
            self.folder.rename(self.folder.with_name("elsewhere"))
        elif record["round"] == 1:
            (self.folder / "parameters.safetensors").mkdir()


class Terminate(Callback):
    """Interrupts the process after a round."""

    def __init__(self, after: int, how: str = "SIGTERM") -> None:
        self.after = after
        self.how = how

    def on_round_end(self, trainer, record):
        if record["round"] == self.after:
            if self.how == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                raise KeyboardInterrupt


class Other(Callback):
    """Has a hook of another library."""

    def on_epoch_end(self, trainer):
        raise AssertionError


class RefuseToStart(Callback):
    def on_fit_start(self, trainer, total_samples):
        raise ValueError("not today")


def half(outputs, targets):
    return torch.tensor(0.5)
