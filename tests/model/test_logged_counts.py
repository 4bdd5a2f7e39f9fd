"""What a Lightning-style module logs: each argument of ``self.log`` is kept, or an error."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import DistributedTrainer

LENGTHS = np.array([6, 6, 6, 1, 1, 1, 3, 2])


class Tagger(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(4, 2)
        self.options = options

    def _step(self, batch, name):
        x, y = batch
        loss = functional.cross_entropy(self.scores(x).movedim(-1, 1), y)
        tokens = int((y != -100).sum())
        self.log(f"{name}_by_tokens", loss, batch_size=tokens, **self.options)
        self.log_dict({f"{name}_in_dict": loss}, batch_size=tokens, **self.options)
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self._step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


SHOWN = {
    "prog_bar": True,
    "logger": False,
    "on_step": True,
    "on_epoch": True,
    "reduce_fx": torch.mean,
    "enable_graph": True,
    "sync_dist": True,
    "add_dataloader_idx": False,
    "metric_attribute": "scores",
}
"""Arguments of Lightning's ``log`` that make no difference to a mean over all workers."""


@pytest.mark.parametrize("options", [{}, SHOWN])
@pytest.mark.parametrize(("workers", "batch_size"), [(1, 8), (1, 3), (2, 2)])
def test_it_is_the_mean_over_batch_size(workers, batch_size, options):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 6, 4)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int64)
    y[np.arange(6) >= LENGTHS[:, None]] = -100
    net = Tagger(**options)
    expected = functional.cross_entropy(
        net.scores(torch.from_numpy(x)).movedim(-1, 1), torch.from_numpy(y)
    ).item()
    with DistributedTrainer(num_workers=workers, engine="serial") as trainer:
        trainer.build(net)
        trainer.fit(
            x, y, num_epochs=1, batch_size=batch_size, validation_data=(x, y), progress=False
        )
        record = trainer.history[0]
    for name in ("by_tokens", "in_dict"):
        assert record[name] == pytest.approx(expected, rel=1e-6)
        assert record[f"val_{name}"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("reduce_fx", "sum"),
        ("reduce_fx", torch.max),
        ("sync_dist_group", object()),
        ("rank_zero_only", True),
        ("on_epochs", True),
    ],
)
def test_what_would_be_another_number_is_an_error(option, value):
    with DistributedTrainer(num_workers=1, engine="serial") as trainer:
        trainer.build(Tagger(**{option: value}))
        x = np.zeros((8, 6, 4), np.float32)
        with pytest.raises(TypeError, match=option):
            trainer.check_fit(x, np.zeros((8, 6), np.int64), num_epochs=1, batch_size=8)
