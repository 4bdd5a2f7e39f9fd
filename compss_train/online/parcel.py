"""Parcels: values that tasks of a fit send to its coordinator, or get back from it, as arrays of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from compss_train.engines.codec import decode, encode


def packed(value: object) -> torch.Tensor:
    """Return a value as bytes."""
    return torch.from_numpy(np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in encode(value)]))


def unpacked(parcel: torch.Tensor) -> Any:
    """Return the value; only of a parcel from one's own tasks, as it may hold code."""
    return decode(parcel.numpy())
