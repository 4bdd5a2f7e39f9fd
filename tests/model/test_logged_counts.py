"""What ``self.log(..., batch_size=n)`` of a Lightning-style module logs is a mean over n."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import DistributedTrainer

LENGTHS = np.array([6, 6, 6, 1, 1, 1, 3, 2])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(4, 2)

    def _step(self, batch, name):
        x, y = batch
        loss = functional.cross_entropy(self.scores(x).movedim(-1, 1), y)
        self.log(f"{name}_by_tokens", loss, batch_size=int((y != -100).sum()))
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self._step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize(("workers", "batch_size"), [(1, 8), (1, 3), (2, 2)])
def test_it_is_the_mean_over_all_of_them(workers, batch_size):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 6, 4)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int64)
    y[np.arange(6) >= LENGTHS[:, None]] = -100
    net = Tagger()
    expected = functional.cross_entropy(
        net.scores(torch.from_numpy(x)).movedim(-1, 1), torch.from_numpy(y)
    ).item()
    with DistributedTrainer(num_workers=workers, engine="serial") as trainer:
        trainer.build(net)
        trainer.fit(
            x, y, num_epochs=1, batch_size=batch_size, validation_data=(x, y), progress=False
        )
        record = trainer.history[0]
    assert record["by_tokens"] == pytest.approx(expected, rel=1e-6)
    assert record["val_by_tokens"] == pytest.approx(expected, rel=1e-6)
