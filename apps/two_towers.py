"""A recommender with two towers: dicts of inputs (users, items) and targets (likes, ratings).

python apps/two_towers.py --epochs 10
"""

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from compss_train import DistributedTrainer

USERS = 50
FEATURES = 8
TASTES = 6


def made_ratings(samples: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Ratings of items by users, each of whom has a taste of features."""
    random = np.random.default_rng(0)
    tastes = random.normal(size=(USERS, FEATURES)) / FEATURES**0.5
    user = random.integers(0, USERS, samples)
    item = random.normal(size=(samples, FEATURES))
    rating = (tastes[user] * item).sum(axis=1) + 0.1 * random.normal(size=samples)
    x = {"user": user, "item": item.astype(np.float32)}
    return x, {"rating": rating.astype(np.float32), "like": (rating > 0).astype(np.float32)}


class TwoTowers(nn.Module):
    """The product of what both towers say is a rating; a like is likelier the higher it is."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, TASTES)
        self.item = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, TASTES))
        self.sharpness = nn.Parameter(torch.ones(()))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the ratings and the logits of likes."""
        rating = (self.user(user) * self.item(item)).sum(dim=1)
        return {"rating": rating, "like": self.sharpness * rating}


def loss(output: Any, target: Any) -> torch.Tensor:
    like = functional.binary_cross_entropy_with_logits(output["like"], target["like"])
    return like + functional.mse_loss(output["rating"], target["rating"])


def right_likes(output: Any, target: Any) -> torch.Tensor:
    return ((output["like"] > 0) == (target["like"] > 0.5)).float().mean()


def rows(columns: dict[str, np.ndarray], chosen: slice) -> dict[str, np.ndarray]:
    return {name: column[chosen] for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default="auto", choices=["auto", "serial", "local", "compss"])
    arguments = parser.parse_args()

    x, y = made_ratings(6000)
    train = slice(0, 5000)
    test = slice(5000, None)
    torch.manual_seed(0)
    with DistributedTrainer(arguments.workers, engine=arguments.engine, seed=0) as trainer:
        adam = {"optimizer": "adam", "lr": 0.01}
        trainer.build(TwoTowers(), adam, loss, {"right_likes": right_likes})
        options = {"num_epochs": arguments.epochs, "batch_size": 50, "progress": False}
        trainer.fit(rows(x, train), rows(y, train), **options)
        measured = trainer.evaluate(rows(x, test), rows(y, test))
        rating = trainer.predict(rows(x, test))["rating"]
    correlation = np.corrcoef(rating, y["rating"][test])[0, 1]
    print(f"test loss {measured['loss']:.3f}, right likes {100 * measured['right_likes']:.1f}%")
    print(f"correlation of ratings {correlation:.3f}")


if __name__ == "__main__":
    main()
