"""Fits with compressed merges: the bits of a plain loop and of every engine, what is sent, and what
is kept.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, Merge, SerialEngine
from compss_train.engines.calls import intra_op_threads
from compss_train.engines.codec import encode
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.compression import compress_arrays
from tests.helpers.cases import each_value
from tests.helpers.models import (
    SGD,
    assert_same_bits,
    awkward_net,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.small_fits import PLAIN_SGD, STILL, X, Y, combined, fit, fitted, trainer_of

DTYPES = ["bf16", "int8"]
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


class Recording(SerialEngine):
    """Keeps what the training tasks return, encoded."""

    def __init__(self):
        super().__init__()
        self.results = []

    def submit(self, function, *args, **options):
        made = super().submit(function, *args, **options)
        if function.__name__ == "map_chunk":
            self.results.append(self.fetch([made[0]])[0])
        return made


def steps(net, x, y, lr=0.1):
    """Train by hand, in batches of 4, with plain SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    with intra_op_threads(1):
        for rows in np.array_split(np.arange(len(x)), -(-len(x) // 4)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])
            ).backward()
            optimizer.step()
    return {name: array.copy() for name, array in state_arrays(net).items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "cuts", [[slice(0, 30)], [slice(0, 12), slice(12, 30)]], ids=[("one worker"), ("two workers")]
)
def test_a_fit_is_a_plain_loop_with_compressed_changes(dtype, cuts):
    x, y = classification(samples=30)
    blocks = [BlockedTensor([[part[cut]] for cut in cuts]) for part in (x, y)]
    ours = fitted(
        "serial", len(cuts), *blocks, num_epochs=3, batch_size=4, merge=Merge(dtype=dtype), **STILL
    )
    net = mlp()
    errors = [None] * len(cuts)
    weights = [12, 18] if len(cuts) == 2 else [1]
    for _ in range(3):
        before = copy.deepcopy(state_arrays(net))
        sums = {}
        for worker, cut in enumerate(cuts):
            after = steps(copy.deepcopy(net), x[cut], y[cut])
            changes, errors[worker] = compress_arrays(
                before, after, list(after), dtype, errors[worker]
            )
            for name, change in changes.items():
                term = weights[worker] * change[:].reshape(change.shape).astype(np.float64)
                sums[name] = sums[name] + term if name in sums else term
        means = {name: array / sum(weights) + before[name] for name, array in sums.items()}
        params.load_into(net, {name: array.astype(np.float32) for name, array in means.items()})
    assert_same_bits(ours, state_arrays(net))


ON_ARRIVAL = {"merge": "commutative"}


@pytest.mark.parametrize(
    ("merge", "kind", "dtype"),
    each_value(
        [{}, ON_ARRIVAL, combined(ON_ARRIVAL, merge=Merge(outer_optimizer=NESTEROV))],
        [torch.float16, torch.float64],
        DTYPES,
    ),
    ids=str,
)
def test_fits_end_near_those_without_compression(dtype, kind, merge):
    def net():
        return mlp().to(kind)

    data = X.astype(torch.empty(0, dtype=kind).numpy().dtype), Y
    start = state_arrays(net())
    ends = [
        fit(
            trainer_of(net=net, optimizer=PLAIN_SGD, metric=None),
            data=data,
            **combined(merge, merge=Merge(dtype=each)),
        )
        for each in (dtype, None)
    ]
    for name, array in ends[1].items():
        assert ends[0][name].dtype == array.dtype
        moved = np.abs(array - start[name]).max()
        apart = np.abs(array - ends[0][name]).max()
        assert 0 < apart <= moved / 10


def test_buffers_integers_and_frozen_weights_are_sent_as_they_are():
    def net():
        half_frozen = awkward_net()
        half_frozen[4].requires_grad_(False)
        return half_frozen

    ends = [
        fit(trainer_of(net=net), num_epochs=1, merge=Merge(dtype=dtype))
        for dtype in (None, "bf16", "int8")
    ]
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked", "4.weight"):
        assert ends[0][name].tobytes() == ends[1][name].tobytes() == ends[2][name].tobytes()
    assert (
        ends[0]["0.weight"].tobytes()
        != ends[1]["0.weight"].tobytes()
        != ends[2]["0.weight"].tobytes()
    )


@pytest.mark.parametrize(
    ("dtype", "state", "share"),
    # Averaged states are sent as bf16.
    [("bf16", "keep", 0.52), ("int8", "keep", 0.27), ("int8", "average", 0.39)],
)
def test_tasks_return_fewer_bytes(dtype, state, share):
    def net():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 3)
        )

    sizes = {}
    for each in (dtype, None):
        engine = Recording()
        merge = Merge(optimizer_state=state, dtype=each)
        fit(trainer_of(engine, workers=2, net=net, optimizer=SGD), num_epochs=1, merge=merge)
        sizes[each] = [sum(chunk.nbytes for chunk in encode(result)) for result in engine.results]
    assert min(sizes[None]) > 4 * 270_000
    assert max(sizes[dtype]) <= share * min(sizes[None])


def test_what_diverges_is_an_error():
    for dtype in DTYPES:
        with pytest.raises(DivergedError, match=r"the loss became|became NaN or infinite in"):
            fit(
                trainer_of(optimizer={"optimizer": "sgd", "lr": 1e38}, net=mlp),
                merge=Merge(dtype=dtype),
            )

    def double():
        return mlp().double()

    huge = trainer_of(optimizer={"optimizer": "sgd", "lr": 1e60}, net=double, metric=None)
    with pytest.raises(
        DivergedError,
        match=r"the change of '0\.weight' in round 0 .* too large for Merge\(dtype='bf16'\)",
    ):
        fit(huge, data=(X.astype(np.float64), Y), merge=Merge(dtype="bf16"), batch_size=60)
