"""Slots: where in a buffer's storage a sample is."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Slots: TypeAlias = "NDArray[np.intp]"
"""Numbers of slots, or of places in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)
