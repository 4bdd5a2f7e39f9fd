"""A program's settings of torch and numpy give a fit the same bits on every engine."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from tests.helpers.models import SGD, assert_same_bits
from tests.model.test_program_settings import changed

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = np.arange(24) % 2


def seen(x):
    """Shift x by what is set where this runs."""
    near_0 = torch.tensor([1e-310], dtype=torch.float64) * 1
    flags = [
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        np.geterr()["over"] == "raise",
        torch.get_float32_matmul_precision() == "medium",
        near_0 == 0,
        torch.tensor(0.1).dtype == torch.float64,
    ]
    return x + sum(float(flag) * 2.0**-place for place, flag in enumerate(flags))


@pytest.mark.parametrize(
    "name",
    [
        "default dtype",
        "precision of products",
        "cuDNN",
        "deterministic",
        "no numbers near 0",
        ("numpy's errors"),
    ],
)
def test_a_fit_has_the_bits_of_the_serial_engine(name, engine):
    def fit(on):
        torch.manual_seed(0)
        trainer = DistributedTrainer(2, engine=on, seed=0, threads=1)
        trainer.build(
            nn.Linear(3, 2, dtype=torch.float32), SGD, "cross_entropy", "accuracy", transform=seen
        )
        trainer.fit(X, Y, num_epochs=2, batch_size=4, validation_data=(X, Y), progress=False)
        loss = np.array(trainer.evaluate(X, Y)["loss"])
        return {**trainer.get_parameters(), "predicted": trainer.predict(X), "loss": loss}

    plain = fit("serial")
    with changed([name]):
        expected = fit("serial")
        got = fit(engine)
    assert_same_bits(got, expected)
    assert not np.array_equal(plain["predicted"], expected["predicted"])
