"""Draw the plot of README.md and the pictures of docs/gallery.md: ``python docs/pictures.py``.

The plot has a light and a dark variant. The other pictures have no background, and text in a gray
that can be read on both. Each is drawn from what its app makes or trains in about a minute.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from compss_train import DistributedTrainer, FileDataset, PartialShuffleSampler, TrainTransform
from compss_train.buffers import FIFO, Buffer, Reservoir

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
sys.path.insert(0, str(DOCS.parent / "apps"))  # before packages of the same names

GRAY = "#8a8f98"
BLUE = "#3f7fc4"
INCHES = (4.0, 2.0)
DPI = 120

LINKS = ("100 Mbit/s", "1 Gbit/s", "no limit")
SECONDS_TO_88 = {
    "DDP": (792, 100, 44),
    "compss_train": (45, 31, 29),
    'compss_train, Merge(dtype="int8")': (36, 26, 23),
}
"""Measured: docs/measurements/networks.md."""

CLOTHES = [
    "top",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
]


def draw_network(background: str, ink: str, colors: tuple[str, str, str]) -> Figure:
    """Draw the seconds to 88% accuracy over the speed of the link between two nodes."""
    style = {
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with rc_context(style):
        figure = Figure(figsize=(7.7, 4.0), layout="constrained", facecolor=background)
        axes = figure.add_subplot(facecolor=background)
        markers = ("s--", "o-", "o-")
        for (name, seconds), marker, color in zip(
            SECONDS_TO_88.items(), markers, colors, strict=True
        ):
            axes.plot(LINKS, seconds, marker, color=color, label=name, linewidth=2, markersize=9)
        axes.set(yscale="log", yticks=[30, 100, 300, 1000], ylim=(18, 1000))
        axes.set_yticklabels(["30", "100", "300", "1000"])
        axes.minorticks_off()
        axes.set(xlabel="link between the two nodes", ylabel="seconds to 88% test accuracy")
        axes.grid(color=ink, alpha=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure


def fit(net: Any, optimizer: Any, loss: Any, x: Any, y: Any, epochs: int, **options: Any) -> Any:
    """Return the trainer of a short fit in this process."""
    torch.manual_seed(0)
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(net, optimizer, loss, **options)
    trainer.fit(x, y, num_epochs=epochs, batch_size=32, progress=False)
    return trainer


def new_figure(rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure without background, and its axes."""
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.tick_params(colors=GRAY, labelsize=7)
        axis.set_facecolor("none")
        for spine in axis.spines.values():
            spine.set_color(GRAY)
    return figure, list(axes.flat)


def show_images(images: NDArray[Any], titles: list[str], columns: int) -> Figure:
    """Draw images with titles."""
    figure, axes = new_figure(-(-len(images) // columns), columns)
    for axis, image, title in zip(axes, images, titles, strict=False):
        axis.imshow(image, cmap="gray")
        axis.set_title(title, fontsize=7, color=GRAY, pad=2)
    for axis in axes:
        axis.set_axis_off()
    return figure


def draw_digits() -> Figure:
    """Draw test digits under the classes that the network gives them."""
    import datasets
    import models

    data = datasets.digits()
    sgd = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    trainer = fit(models.digits_mlp(), sgd, "cross_entropy", data.train_x, data.train_y, 20)
    classes = trainer.predict(data.test_x[:16]).argmax(axis=1)
    return show_images(data.test_x[:16].reshape(-1, 8, 8), [str(digit) for digit in classes], 8)


def draw_fashion() -> Figure:
    """Draw test images under the names of the classes that the network gives them."""
    import datasets
    import models

    data = datasets.fashion_mnist(datasets.FASHION_MNIST_FOLDER)
    sgd = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    x, y = data.train_x[:20000], data.train_y[:20000]
    trainer = fit(
        models.image_mlp(), sgd, "cross_entropy", x, y, 3, transform=models.normalize_images
    )
    classes = trainer.predict(data.test_x[:12]).argmax(axis=1)
    return show_images(255 - data.test_x[:12], [CLOTHES[number] for number in classes], 6)


def draw_unet() -> Figure:
    """Draw images, their masks, and the masks that the network finds."""
    import unet

    x, y = unet.made_images(320, 0)
    trainer = fit(
        unet.UNet(),
        {"optimizer": "adam", "lr": 0.01},
        "dice",
        x,
        y,
        8,
        transform=unet.scaled,
        train_transform=TrainTransform(unet.turned, by_sample=True),
    )
    test_x, test_y = unet.made_images(6, 1)
    rows = [test_x[:, 0] / 255, test_y[:, 0], trainer.predict(test_x)[:, 0]]
    titles = [""] * 18
    for row, title in enumerate(("image", "mask", "found")):
        titles[6 * row] = title
    return show_images(np.concatenate(rows), titles, 6)


def draw_gan() -> Figure:
    """Draw digits that the generator makes."""
    import gan
    from sklearn.datasets import load_digits

    digits = (load_digits().data / 16).astype(np.float32)
    torch.manual_seed(0)
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    adam = {"optimizer": "adam", "lr": 1e-3, "beta_1": 0.5}
    optimizers = {"generator": adam, "discriminator": adam}
    trainer.build(gan.networks(), optimizers, training_step=gan.adversarial_step)
    trainer.fit(digits, num_epochs=40, batch_size=32, progress=False)
    with torch.no_grad():
        made = trainer.model()["generator"](torch.randn(16, gan.LATENT)).numpy()
    return show_images(made.reshape(-1, 8, 8), [""] * 16, 8)


def draw_ratings() -> Figure:
    """Draw predicted over true ratings of the test samples."""
    import two_towers

    x, y = two_towers.made_ratings(6000)
    train, test = slice(0, 5000), slice(5000, None)
    trainer = fit(
        two_towers.TwoTowers(),
        {"optimizer": "adam", "lr": 0.01},
        two_towers.loss,
        two_towers.rows(x, train),
        two_towers.rows(y, train),
        10,
    )
    predicted = trainer.predict(two_towers.rows(x, test))["rating"]
    figure, (axis,) = new_figure()
    axis.scatter(y["rating"][test], predicted, s=5, alpha=0.5, color=BLUE, linewidths=0)
    axis.set_xlabel("true rating", color=GRAY, fontsize=8)
    axis.set_ylabel("predicted", color=GRAY, fontsize=8)
    return figure


def draw_sentences() -> Figure:
    """Draw what the language model writes after the same words, as it learns."""
    import language_model as app

    from compss_train import Ragged

    texts = [app.tokens(sentence) for sentence in app.made_sentences(1200)]
    x = Ragged([text[:-1] for text in texts])
    y = Ragged([text[1:] for text in texts])
    figure, (axis,) = new_figure()
    axis.set_axis_off()
    for row, epochs in enumerate((1, 3, 10)):
        adam = {"optimizer": "adam", "lr": 0.01}
        trainer = fit(app.CharacterModel(), adam, "cross_entropy", x, y, epochs)
        text = app.written(trainer.model(), "the s", 44)
        height = 0.85 - 0.33 * row
        plural = "s" if epochs > 1 else ""
        axis.text(0, height, f"{epochs} epoch{plural}", color=GRAY, fontsize=8)
        axis.text(0, height - 0.12, text, color=BLUE, fontsize=8, family="monospace")
    return figure


def draw_files() -> Figure:
    """Draw in which order one and two pools of the partial shuffle yield samples of files."""
    import tempfile

    figure, axes = new_figure(1, 2)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(20):
            ids = np.arange(100 * number, 100 * number + 100)
            np.savez(f"{folder}/{number:02}.npz", x=ids, y=ids)
        files = FileDataset(f"{folder}/*.npz")
        for axis, pools in zip(axes, (1, 2), strict=True):
            sampler = PartialShuffleSampler(
                files, shuffle_buffer=400, batch_size=20, pools=pools, seed=0
            )
            order = np.concatenate([batch["x"] for batch in batches_of(files, sampler)])
            axis.scatter(np.arange(len(order)), order, s=1, color=BLUE, linewidths=0)
            plural = "s" if pools > 1 else ""
            axis.set_title(f"{pools} pool{plural}", fontsize=8, color=GRAY)
            axis.set_xlabel("place in the epoch", color=GRAY, fontsize=8)
    axes[0].set_ylabel("sample", color=GRAY, fontsize=8)
    return figure


def batches_of(files: FileDataset, sampler: PartialShuffleSampler) -> Iterator[dict[str, Any]]:
    """Return the batches of an epoch."""
    sampler.set_epoch(0)
    return (files[batch] for batch in sampler)


def draw_buffers() -> Figure:
    """Draw the classes in batches of two buffers, while samples arrive class by class."""
    figure, axes = new_figure(2, 1)
    classes = np.repeat(np.arange(10), 200)
    buffers: dict[str, Buffer] = {"FIFO": FIFO(200), "Reservoir": Reservoir(1000, 100, seed=0)}
    for axis, (name, buffer) in zip(axes, buffers.items(), strict=True):
        drawn = []
        for number in classes:
            buffer.put(int(number))
            if len(buffer) >= 100:
                drawn.append(buffer.get())
        shares = np.array(drawn[: 20 * (len(drawn) // 20)]).reshape(-1, 20)
        axis.imshow(np.sort(shares, axis=1).T, aspect="auto", cmap="tab10", vmin=0, vmax=9)
        axis.set_title(f"batches from {name}", fontsize=8, color=GRAY)
        axis.set(xticks=[], yticks=[])
    return figure


def draw_heat() -> Figure:
    """Draw the temperature of a simulation over time."""
    import heat

    parameters = next(iter(heat.random_parameters(3)))
    equation = heat.HeatEquation(64, heat.TIME_STEP / 4)
    fields = equation.fields(np.full((64, 64), parameters[0]), parameters[1:])
    shown = list(islice(fields, 24))[::6]
    figure, axes = new_figure(1, 4)
    for axis, field in zip(axes, shown, strict=True):
        axis.imshow(field, cmap="inferno", vmin=heat.COLDEST, vmax=heat.HOTTEST, origin="lower")
        axis.set_axis_off()
    return figure


def draw_waves() -> Figure:
    """Draw a simulation of the equation of Kuramoto and Sivashinsky: place over time."""
    from active_surrogate import PROBLEMS

    figure, axes = new_figure(1, 2)
    problem = PROBLEMS["ks"]
    for axis, parameters in zip(
        axes, ((28.0, 0.9, 1.5, 1.0, 0.3), (14.0, 1.2, 0.5, 1.8, 0.7)), strict=True
    ):
        field = np.array(list(problem.fields(np.array(parameters))))
        axis.imshow(field.T, aspect="auto", cmap="RdBu_r", interpolation="bilinear")
        axis.set_axis_off()
    return figure


APPS: dict[str, Callable[[], Figure]] = {
    "digits": draw_digits,
    "fashion_mnist": draw_fashion,
    "npz_files": draw_files,
    "unet": draw_unet,
    "gan": draw_gan,
    "two_towers": draw_ratings,
    "language_model": draw_sentences,
    "buffers_demo": draw_buffers,
    "heat_surrogate": draw_heat,
    "active_surrogate": draw_waves,
}
"""What draws the picture of each app."""


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description="Draw the plot of README.md and of the gallery.")
    parser.add_argument("names", nargs="*", help=f"network, {', '.join(APPS)} (default: all)")
    names = parser.parse_args().names or ["network", *APPS]
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        if name == "network":
            light = draw_network("white", "#1f2328", ("#777777", "#1f5fa8", "#7aa7dc"))
            light.savefig(DOCS / "network.png", dpi=100)
            dark = draw_network("#1e2129", "#d5d9e0", ("#9a9fa8", "#5b9be6", "#a9cbf3"))
            dark.savefig(DOCS / "network-dark.png", dpi=100)
        else:
            APPS[name]().savefig(
                PICTURES / f"{name}.png", dpi=DPI, transparent=True, bbox_inches="tight"
            )
        print(name)


if __name__ == "__main__":
    main()
