"""A language model of characters on sentences of different lengths, in batches of similar lengths.

python apps/language_model.py --epochs 10
"""

import argparse
import random

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Gradients, Ragged

END = "."
CHARACTERS = " abcdefghijklmnopqrstuvwxyz" + END
"""Characters by their numbers; sentences are padded with 0, a space."""
NOUNS = ("worker", "batch", "network", "gradient", "block", "server", "sample")
VERBS = ("trains", "sends", "averages", "reads", "waits for")
ADJECTIVES = ("small", "fast", "distant", "random", "new")


def made_sentences(number: int) -> list[str]:
    choose = random.Random(0)

    def noun() -> str:
        adjectives = choose.sample(ADJECTIVES, choose.randrange(3))
        return " ".join(["the", *adjectives, choose.choice(NOUNS)])

    return [f"{noun()} {choose.choice(VERBS)} {noun()}{END}" for _ in range(number)]


def tokens(text: str) -> np.ndarray:
    return np.array([CHARACTERS.index(character) for character in text])


class CharacterModel(nn.Module):
    """Gives the logits of each next character, (samples, characters, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), 24)
        self.recurrent = nn.GRU(24, 96, batch_first=True)
        self.last = nn.Linear(96, len(CHARACTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for a batch."""
        states, _ = self.recurrent(self.embedding(x))
        return self.last(states).transpose(1, 2)


@torch.no_grad()
def written(net: nn.Module, start: str, longest: int = 80) -> str:
    """Continue a text by the likeliest characters."""
    text = start
    while len(text) < longest and not text.endswith(END):
        logits = net(torch.from_numpy(tokens(text))[None])[0, :, -1]
        text += CHARACTERS[int(logits.argmax())]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default="auto", choices=["auto", "serial", "local", "compss"])
    arguments = parser.parse_args()

    texts = [tokens(sentence) for sentence in made_sentences(1200)]
    x = BlockedTensor.from_array(Ragged([text[:-1] for text in texts]), 4)
    # Padded with -100, which has no loss.
    y = BlockedTensor.from_array(Ragged([text[1:] for text in texts]), 4)
    torch.manual_seed(0)
    with DistributedTrainer(arguments.workers, engine=arguments.engine, seed=0) as trainer:
        trainer.build(
            CharacterModel(),
            {"optimizer": "adam", "lr": 0.01},
            "cross_entropy",
            gradients=Gradients(clip_norm=1.0),
        )
        trainer.fit(
            x,
            y,
            num_epochs=arguments.epochs,
            batch_size=30,
            bucket_by_length="x",
            progress=False,
        )
        losses = [record["loss"] for record in trainer.history]
        net = trainer.model()
    print(f"loss {losses[0]:.3f} in the first epoch, {losses[-1]:.3f} in the last")
    print(written(net, "the s"))


if __name__ == "__main__":
    main()
