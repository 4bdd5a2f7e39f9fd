"""A GAN on the digits of scikit-learn: two modules, an optimizer each, one training step.

python apps/gan.py --epochs 40
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import softplus

from compss_train import DistributedTrainer, StepContext

LATENT = 16
SHADES = " .:-=+*#%@"


def networks() -> dict[str, nn.Module]:
    return {
        "generator": nn.Sequential(
            nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid()
        ),
        "discriminator": nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)),
    }


def adversarial_step(
    model: nn.ModuleDict, batch: tuple[torch.Tensor], step: StepContext
) -> dict[str, torch.Tensor]:
    """Let the discriminator learn to tell real from made digits, then the generator to deceive."""
    (real,) = batch
    made = model["generator"](torch.randn(len(real), LATENT))
    judge = model["discriminator"]
    loss = softplus(-judge(real)).mean() + softplus(judge(made.detach())).mean()
    step.update("discriminator", loss)
    generator_loss = softplus(-judge(made)).mean()
    step.update("generator", generator_loss)
    return {"loss": loss, "generator_loss": generator_loss, "spread": made.std(dim=0).mean()}


def picture(digits: np.ndarray) -> str:
    rows = np.concatenate(digits.reshape(-1, 8, 8), axis=1)
    return "\n".join("".join(SHADES[int(9 * value)] for value in row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default="auto", choices=["auto", "serial", "local", "compss"])
    arguments = parser.parse_args()

    digits = (load_digits().data / 16).astype(np.float32)
    torch.manual_seed(0)
    with DistributedTrainer(arguments.workers, engine=arguments.engine, seed=0) as trainer:
        adam = {"optimizer": "adam", "lr": 1e-3, "beta_1": 0.5}
        optimizers = {"generator": adam, "discriminator": adam}
        trainer.build(networks(), optimizers, training_step=adversarial_step)
        trainer.fit(digits, num_epochs=arguments.epochs, batch_size=32, progress=False)
        last = trainer.history[-1]
        with torch.no_grad():
            made = trainer.model()["generator"](torch.randn(8, LATENT)).numpy()
    print(picture(made))
    losses = f"discriminator {last['loss']:.3f}, generator {last['generator_loss']:.3f}"
    print(f"{losses}, spread {last['spread']:.3f}")


if __name__ == "__main__":
    main()
