"""What people write first is trained, or is an error that says how to fix it."""

import contextlib
import re
import threading
import traceback
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compss_train import (
    BlockedTensor,
    BufferSpec,
    DistributedTrainer,
    DivergedError,
    PartialShuffle,
    Samples,
    Simulations,
)
from compss_train.callbacks import Checkpoint, WorkerCallback
from compss_train.engines import LocalEngine
from compss_train.exceptions import WorkerTraceback
from tests.helpers.models import SGD, assert_same_bits, classification, mlp, named
from tests.helpers.notes import Notes

X, Y = classification()
FIT = {"num_epochs": 2, "batch_size": 20, "progress": False}


def trainer_of(net, loss="cross_entropy", metric=None, engine="serial"):
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(net, SGD, loss, metric)
    return trainer


class Wrapped(nn.Module):
    """Returns what a function makes of the logits."""

    def __init__(self, wrap):
        super().__init__()
        self.net = mlp()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.net(x))


@dataclass
class Output:
    logits: torch.Tensor
    hidden: int = 3


@pytest.mark.parametrize(
    "wrap",
    [Output, lambda logits: {"logits": logits, "hidden": logits * 2}],
    ids=["object", "dict"],
)
def test_logits_of_outputs_with_names_are_taken(wrap):
    expected, found = (trainer_of(net, metric="accuracy") for net in (mlp(), Wrapped(wrap)))
    plain, trained = (
        trainer.fit(X, Y, **FIT, validation_data=(X, Y)) for trainer in (expected, found)
    )
    assert_same_bits({name.removeprefix("net."): array for name, array in trained.items()}, plain)
    assert found.history[-1]["val_accuracy"] == expected.history[-1]["val_accuracy"]


def test_the_outputs_own_loss_is_taken_without_y():
    class Labelled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, features, labels):
            logits = self.net(features)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    plain = trainer_of(mlp()).fit(X, Y, **FIT)
    trained = trainer_of(Labelled()).fit({"features": X, "labels": Y}, **FIT)
    assert_same_bits({name.removeprefix("net."): array for name, array in trained.items()}, plain)


def image_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))


ONE = Y.astype(np.float32) % 2
COMPARED = r"compares them element by element: .* y\[:, None\]"


class Named(torch.utils.data.Dataset):
    """Samples whose parts have names of their own."""

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return {"image": X[number], "kind": Y[number]}


FRAME = pd.DataFrame({"x": X[:, 0], "y": Y})


class Lazy:
    """What says of itself what a LazyFrame of polars does."""

    def lazy(self):
        return self

    def collect(self):
        return FRAME


ARRAYS = pd.DataFrame({"a": [np.zeros(3)] * 60, "b": X[:, 0]})


def embedded(rows):
    return nn.Sequential(nn.Embedding(rows, 1), nn.Flatten(), nn.Linear(6, 3))


MISTAKES = {
    "floats for an embedding": (
        *(embedded(9), "cross_entropy", np.abs(X).round(), Y, RuntimeError),
        r"give codes apart from other numbers.*CsvReader\(dtypes=",
    ),
    "codes above those of an embedding": (
        *(embedded(3), "cross_entropy", np.tile(Y[:, None], 6) * 2, Y, IndexError),
        "takes integers from 0 to n - 1; those in x go from 0 to 4",
    ),
    "one feature": (
        nn.Linear(1, 3),
        "cross_entropy",
        X[:, 0],
        Y,
        RuntimeError,
        r"give x\[:, None\], or x\[None\]",
    ),
    "boolean targets": (
        mlp(),
        nn.CrossEntropyLoss(),
        X,
        Y > 0,
        RuntimeError,
        r"class number .*: give y.long\(\)",
    ),
    "a list of dicts": (
        *(
            mlp(),
            "cross_entropy",
            [{"x": x, "y": 1} for x in X],
            None,
            ValueError,
            r"Samples\(samples\)",
        ),
    ),
    "arrays in a frame": (
        *(mlp(), "cross_entropy", ARRAYS, Y, ValueError),
        r"ndarray values in 'a': give them apart, np.stack\(list\(frame\['a'\]\)\)",
    ),
    "other names of parts": (
        *(mlp(), "cross_entropy", Named(), None),
        *(TypeError, r"Name the inputs and targets of samples: Samples\(dataset, x=..., y=...\)"),
    ),
    "pairs": (
        mlp(),
        "cross_entropy",
        [*zip(X, Y, strict=True)],
        None,
        ValueError,
        r"pairs .*: give Samples\(pairs\)",
    ),
    "F.mse_loss that broadcasts": (
        *(nn.Linear(6, 1), nn.functional.mse_loss, X, ONE, ValueError, "and mse_loss " + COMPARED),
    ),
    "a lambda that broadcasts": (
        *(nn.Linear(6, 1), lambda output, y: nn.functional.mse_loss(output, y), X, ONE, ValueError),
        "and mse_loss " + COMPARED,
    ),
    "arithmetic that broadcasts": (
        *(
            nn.Linear(6, 1),
            lambda output, y: ((y.double() - output) ** 2).mean(),
            X,
            ONE,
            ValueError,
        ),
        "and sub " + COMPARED,
    ),
    "outputs without a column": (
        *(
            Wrapped(lambda logits: logits[:, 0]),
            lambda output, y: (output - y).abs().mean(),
            X,
            ONE[:, None],
        ),
        *(ValueError, r"and sub compares them element by element: .* y\[:, 0\]"),
    ),
    "groups": (
        mlp(),
        "cross_entropy",
        FRAME.groupby("y"),
        None,
        TypeError,
        r"sequences, \[group\[columns\] for",
    ),
    "samples of a frame": (
        mlp(),
        "cross_entropy",
        lambda: Samples(FRAME),
        None,
        TypeError,
        ("give x=frame"),
    ),
    "a lazy frame": (
        mlp(),
        "cross_entropy",
        Lazy(),
        Y,
        TypeError,
        r"not read yet: give frame.collect\(\)",
    ),
    "None as y": (mlp(), "cross_entropy", X, [None] * 60, TypeError, "None 60 times, .*out y"),
    "numbers that are objects": (
        *(mlp(), "cross_entropy", pd.DataFrame(X).astype(object), Y, ValueError),
        r"numbers in '0' as Python objects.*pandas.to_numeric\(frame\['0'\]\)",
    ),
    "a collate_fn of three parts": (
        *(mlp(), "cross_entropy", lambda: in_three_parts(), None, TypeError),
        r"batch that collate_fn makes is a tuple of 3 parts; .*collate=collate_fn, x=\(0, 1\), y=2",
    ),
    "DataParallel": (
        nn.DataParallel(mlp()),
        "cross_entropy",
        X,
        Y,
        ValueError,
        ("DataParallel, .* give net.module"),
    ),
    "meta": (
        nn.Linear(6, 3, device="meta"),
        "cross_entropy",
        X,
        Y,
        ValueError,
        "on the meta device, .* on the CPU",
    ),
    "a tuple": (
        *(Wrapped(lambda logits: (logits, logits)), "cross_entropy", X, Y),
        *(
            TypeError,
            (
                "returns a tuple, and the loss takes a tensor: build with loss=, .* or "
                "with training_step="
            ),
        ),
    ),
    "channels last": (
        *(image_net(), "cross_entropy", np.ones((60, 8, 8, 3), np.float32), Y),
        *(RuntimeError, "3 channels last.*x.transpose.0, 3, 1, 2"),
    ),
    "no channels": (
        *(
            nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()),
            "cross_entropy",
            np.ones((60, 8, 8), np.float32),
            Y,
        ),
        *(RuntimeError, r"no dimension of channels: give x\[:, None\]"),
    ),
    "targets in a column": (
        *(mlp(), nn.CrossEntropyLoss(), X, Y[:, None]),
        *(RuntimeError, r"and y with shape \(15, 1\) and dtype int64 went through a network"),
    ),
    "the name of a column": (
        mlp(),
        "cross_entropy",
        X,
        "kind",
        ValueError,
        r"a column as frame\['label'\]",
    ),
    "BCE with (n,)": (
        *(nn.Linear(6, 1), nn.BCEWithLogitsLoss(), X, ONE),
        *(ValueError, r"\(15, 1\) and targets \(15,\), and BCEWithLogitsLoss " + COMPARED),
    ),
    "MSE that broadcasts": (
        nn.Linear(6, 1),
        nn.MSELoss(),
        X,
        ONE,
        ValueError,
        "MSELoss " + COMPARED,
    ),
    "logits": (
        *(nn.Linear(6, 1), "binary_cross_entropy", X, ONE[:, None]),
        *(RuntimeError, "takes probabilities: end the network with nn.Sigmoid"),
    ),
    "text": (
        mlp(),
        "cross_entropy",
        np.array(["one", "two"] * 30),
        Y,
        TypeError,
        ("a tokenizer makes integers"),
    ),
}


def in_three_parts():
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    made = (torch.zeros(20, 6), torch.zeros(20, 6), torch.zeros(20).long())
    return DataLoader(pairs, batch_size=20, collate_fn=lambda samples: made)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # is deprecated
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda net: nn.Sequential(torch.jit.script(net))]
)
def test_a_scripted_network_is_an_error(make):
    with pytest.raises(
        ValueError, match=r"scripted or traced by torch.jit.*give the module itself"
    ):
        trainer_of(make(nn.Linear(6, 3)))


def test_a_sparse_buffer_is_told_how_it_can_stay():
    net = mlp()
    net.register_buffer("links", torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="'links' of the network") as caught:
        trainer_of(net)
    assert caught.value.__notes__[0].endswith("('links', tensor, persistent=False).")
    net.register_buffer("links", torch.eye(3).to_sparse(), persistent=False)
    trainer_of(net).fit(X, Y, **FIT)


class Unregistered(nn.Module):
    """Keeps parts where torch does not find their parameters."""

    def __init__(self, parts):
        super().__init__()
        self.net = mlp()
        self.parts = parts
        self.known = [self.net]

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([nn.Linear(6, 6)], True),
        ((nn.ReLU(), nn.Linear(6, 6)), True),
        ({"first": nn.Parameter(torch.zeros(1))}, True),
        ([nn.Linear(6, 6).requires_grad_(requires_grad=False)], False),
        ([nn.ReLU(), 3], False),
    ],
    ids=named,
)
def test_parts_in_plain_lists_are_told_not_to_be_trained(parts, told):
    words = f"'parts' of the network is a plain {type(parts).__name__}, .*not trained"
    with pytest.warns(UserWarning, match=words) if told else contextlib.nullcontext():
        trainer_of(Unregistered(parts))


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_common_mistakes_say_how_to_fix_them(name, method):
    net, loss, x, y, error, message = MISTAKES[name]
    with pytest.raises(error) as caught:
        getattr(trainer_of(net, loss), method)(x() if callable(x) else x, y, **FIT)
    assert re.search(
        message, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]), re.DOTALL
    )


def test_a_step_that_calls_backward_is_told_that_the_trainer_does():
    def step(model, batch, context):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), SGD, training_step=step)
    with pytest.raises(RuntimeError, match="a second time") as caught:
        trainer.fit(X, Y, **FIT)
    assert (
        "The trainer calls backward() itself: leave it out of the training step."
        in caught.value.__notes__
    )


class Neuron(nn.Module):
    """Has a membrane, and is in a list of its class, as snntorch's neurons are."""

    neurons = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.membrane = torch.zeros(1)
        self.neurons.append(self)

    def forward(self, x):
        self.membrane = 0.9 * self.membrane + x.mean(dim=0)
        return x + self.membrane


def test_neurons_that_go_on_with_an_earlier_batch_are_told_how_to_reset_them():
    def step(model, batch, context):
        for neuron in Neuron.neurons:
            neuron.membrane = torch.zeros(1)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(nn.Sequential(mlp(), Neuron()), SGD, training_step=step)
    with pytest.raises(RuntimeError, match="a second time") as caught:
        trainer.fit(X, Y, **FIT)
    assert any("reset or detach() it" in note for note in caught.value.__notes__)


def squared(output, y):
    return ((output - y) ** 2).mean()


def test_broadcasting_is_an_error_that_names_the_users_line(shared_local):
    """In training, validation, metrics, evaluation and online fits."""
    column = ONE[:, None]
    rows = [*zip(X, ONE, strict=True)]
    online = {"buffer": BufferSpec("FIFO", 16), "batch_size": 5, "progress": False}
    by_name = trainer_of(nn.Linear(6, 1), "mse", squared)
    for call in (
        lambda: trainer_of(nn.Linear(6, 1), squared).fit(X, ONE, **FIT),
        lambda: trainer_of(nn.Linear(6, 1), squared).fit(
            X, column, **FIT, validation_data=(X, ONE)
        ),
        lambda: trainer_of(nn.Linear(6, 1), squared).evaluate(X, ONE),
        lambda: by_name.fit(X, ONE, **FIT),
        lambda: trainer_of(nn.Linear(6, 1), squared, engine=shared_local).fit_online(
            Simulations(iter, [rows]), **online
        ),
    ):
        with pytest.raises(ValueError, match=COMPARED) as caught:
            call()
        assert "squared" in "".join(traceback.format_exception(caught.value))


def test_losses_may_compare_pairs_and_shape_outputs_themselves():
    def ranked(output, y):
        return (torch.sign(y[:, None] - y) * (output.T - output)).relu().mean()

    def flat(output, y):
        return squared(output[:, 0], y) + squared(output, y.unsqueeze(1))

    for loss in (ranked, flat):
        trainer_of(nn.Linear(6, 1), loss, metric=loss).fit(X, ONE, **FIT, validation_data=(X, ONE))


def steps_that_broadcast():
    """Return steps by what they call, each with what is wrong with the first."""
    functional = nn.functional

    def by_function(model, batch, context):
        x, y = batch
        return functional.mse_loss(model(x), y)

    def by_module(model, batch, context):
        x, y = batch
        return nn.L1Loss()(model(x), y.float())

    def by_hand(model, batch, context):
        x, y = batch
        return ((model(x) - y) ** 2).mean()

    def of_integers(model, batch, context):
        x, y = batch
        return (y.long().float() * model(x).sigmoid().log()).mean()

    return by_function, by_module, by_hand, of_integers


@pytest.mark.parametrize("step", steps_that_broadcast(), ids=lambda step: step.__name__)
@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_broadcasting_in_a_step_is_an_error_that_names_the_users_line(step, method, shared_local):
    for engine in ("serial", shared_local):
        trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
        trainer.build(nn.Linear(6, 1), SGD, training_step=step)
        with pytest.raises(ValueError, match=r"targets \(\d+,\), and \w+ " + COMPARED) as caught:
            getattr(trainer, method)(X, ONE, **FIT)
        text = "".join(traceback.format_exception(caught.value))
        assert f"in {step.__name__}" in text
        assert "model(x)" in text


@pytest.mark.parametrize("step", steps_that_broadcast()[:2], ids=lambda step: step.__name__)
def test_broadcasting_in_a_validation_step_is_an_error(step):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(nn.Linear(6, 1), SGD, "mse", validation_step=step)
    with pytest.raises(ValueError, match=COMPARED):
        trainer.evaluate(X, ONE)


class Centers(nn.Linear):
    """Adds the distances of a feature to parameters, as many as there are samples in a batch."""

    def __init__(self):
        super().__init__(6, 1)
        self.centers = nn.Parameter(torch.zeros(15))

    def forward(self, x):
        return super().forward(x) + (x[:, :1] - self.centers).abs().mean(1, keepdim=True)


def test_steps_may_compare_pairs():
    """What broadcasts on purpose is trained: layers, comparisons of targets with each other, and of
    pairs.
    """

    def step(model, batch, context):
        x, y = batch
        output = model(x)
        alike = (y[:, None] == y).float()
        pairs = nn.functional.mse_loss(*torch.broadcast_tensors(output[:, None], output[None]))
        ranked = (torch.sign(y[:, None] - y) * (output.T - output)).relu().mean()
        return squared(output, y[:, None]) + alike.mean() * pairs + ranked

    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(Centers(), SGD, training_step=step)
    trainer.fit(X, ONE, **FIT)
    assert len(trainer.history) == 2


@pytest.mark.parametrize(
    "loss",
    [
        nn.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)),
        nn.functional.binary_cross_entropy_with_logits,
        "bce",
        nn.BCELoss(),
    ],
    ids=named,
)
@pytest.mark.parametrize("outputs", [1, 3])
def test_accuracy_of_a_binary_cross_entropy_compares_each_output(loss, outputs):
    """Logits with 0, and probabilities with one half; also where each sample has several labels, or
    none.
    """
    y = (np.random.default_rng(0).random((60, outputs)) < 0.4).astype(np.float32)
    layer = nn.Linear(6, outputs)
    net = (
        nn.Sequential(layer, nn.Sigmoid())
        if loss == "bce" or isinstance(loss, nn.BCELoss)
        else layer
    )
    trainer = trainer_of(net, loss, "accuracy")
    trainer.fit(X, y, **FIT, validation_data=(X, y))
    threshold = 0.5 if net is not layer else 0
    found = (trainer.predict(X) > threshold) == (y > 0)
    assert (
        trainer.evaluate(X, y)["accuracy"]
        == trainer.history[-1]["val_accuracy"]
        == pytest.approx(found.mean())
    )


@pytest.mark.parametrize(
    ("net", "y", "message"),
    [
        (
            nn.Linear(6, 1),
            ONE[:, None] + 1,
            "the targets of a binary cross entropy are 0 or 1, and these go from 1 to 2",
        ),
        (nn.Linear(6, 1), 2 * ONE[:, None] - 1, "these go from -1 to 1: give .* > threshold"),
        (
            nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()),
            ONE[:, None],
            ("applies a sigmoid to them once more; remove"),
        ),
    ],
)
def test_what_a_binary_cross_entropy_trains_on_in_silence_is_told(net, y, message):
    for call in ("fit", "check_fit"):
        with pytest.warns(UserWarning, match=message):
            getattr(trainer_of(net, nn.BCEWithLogitsLoss()), call)(X, y, **FIT)


def test_frames_whose_indexes_are_in_another_order_are_told():
    frame = pd.DataFrame(X)
    labels = pd.Series(Y)
    shuffled = frame.sample(frac=1, random_state=0)
    message = r"x and y have the same index in another order, .*; y.loc\[x.index\] pairs them"
    with pytest.warns(UserWarning, match=message):
        trainer_of(mlp()).fit(shuffled, labels, **FIT)
    trainer_of(mlp()).fit(shuffled, labels.loc[shuffled.index], **FIT)
    trainer_of(mlp()).fit(frame[10:], labels[:50], **FIT)  # of other labels nothing is known


@pytest.mark.parametrize("names", [["one", 2] * 30, [0, 1] * 30])
@pytest.mark.filterwarnings("error:x and y have the same index")
def test_frames_may_have_indexes_without_an_order_or_with_repetitions(names):
    frame = pd.DataFrame(X, index=names)
    labels = pd.Series(Y, index=names[::-1])
    trainer_of(mlp()).fit(frame, labels, **FIT)


def test_accuracy_of_several_labels_is_told_to_have_no_meaning():
    def loss(output, y):
        return nn.functional.binary_cross_entropy_with_logits(output, y)

    labels = (np.random.default_rng(0).random((60, 3)) < 0.5).astype(np.float32)
    for call in ("fit", "check_fit"):
        with pytest.warns(
            UserWarning, match=("the targets have several classes for a sample, or none, of which")
        ):
            getattr(trainer_of(mlp(), loss, "accuracy"), call)(X, labels, **FIT)
    trainer_of(mlp(), nn.CrossEntropyLoss(), "accuracy").fit(
        X, np.eye(3, dtype=np.float32)[Y], **FIT
    )
    with pytest.raises(
        ValueError, match=r"build for a single output with loss=torch.nn.BCEWithLogitsLoss\(\)"
    ):
        trainer_of(nn.Linear(6, 1), loss, "accuracy").fit(X, ONE[:, None], **FIT)


def summed(output, target):
    return nn.functional.cross_entropy(output[0], target, reduction="sum") + output[1].sum()


@pytest.mark.parametrize(
    ("loss", "wrap"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), nn.Identity()),
        (lambda output, y: nn.functional.cross_entropy(output, y, reduction="sum"), nn.Identity()),
        (summed, lambda logits: (logits, logits.square())),
    ],
    ids=["class", "function", "several outputs"],
)
def test_a_loss_that_adds_up_the_samples_is_told(loss, wrap):
    for call in ("fit", "check_fit"):
        with pytest.warns(
            UserWarning, match=("the loss adds up the samples of a batch, .*: divide it by len")
        ):
            getattr(trainer_of(Wrapped(wrap), loss), call)(X, Y, **FIT)


@pytest.mark.parametrize(
    ("last", "loss"),
    [(nn.Identity(), nn.CrossEntropyLoss()), (nn.Softmax(1), nn.BCELoss()), (nn.Softmax(1), "mse")],
)
def test_a_softmax_of_one_output_is_told_to_train_nothing(last, loss):
    for call in ("fit", "check_fit"):
        with pytest.warns(
            UserWarning,
            match=("a softmax of one output is 1, and trains nothing: .*BCEWithLogitsLoss"),
        ):
            getattr(trainer_of(nn.Sequential(nn.Linear(6, 1), last), loss), call)(
                X, ONE[:, None], **FIT
            )


class Slope(nn.Module):
    """Returns the derivative of an inner network, as forces are those of an energy."""

    def __init__(self, surroundings):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))
        self.surroundings = surroundings

    def forward(self, x):
        with self.surroundings():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


def test_networks_that_differentiate_are_told_how_they_do_in_evaluation():
    trainer = trainer_of(Slope(contextlib.nullcontext), "mse")
    trainer.fit(X, X, **FIT)
    for call in (lambda: trainer.predict(X), lambda: trainer.evaluate(X, X)):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert any("within `with torch.enable_grad():`" in note for note in caught.value.__notes__)
    trainer = trainer_of(Slope(torch.enable_grad), "mse")
    trainer.fit(X, X, **FIT, validation_data=(X, X))
    assert trainer.predict(X).shape == X.shape


def correct(output, y):
    return (output.argmax(dim=1) == y).sum()


def root(output, y):
    return nn.functional.cross_entropy(output, y).sqrt()


@pytest.mark.parametrize("metric", [correct, root])
def test_a_metric_that_is_not_a_mean_over_samples_is_told(metric):
    for call in ("fit", "check_fit"):
        with pytest.warns(
            UserWarning,
            match=(
                f"the metric '{metric.__name__}' is not a mean over samples, .* of torchmetrics"
            ),
        ):
            getattr(trainer_of(mlp(), metric=metric), call)(X, Y, **FIT)


def contrast(output, y):
    one = nn.functional.normalize(output)
    other = nn.functional.normalize(output.flip(1))
    return nn.functional.cross_entropy(one @ other.T, torch.arange(len(output)))


def right(output, y):
    return (output.argmax(dim=1) == y).to(output.dtype).mean()


@pytest.mark.parametrize(
    "loss", ["cross_entropy", nn.CrossEntropyLoss(label_smoothing=0.1), contrast]
)
@pytest.mark.filterwarnings("error")
def test_of_means_and_of_losses_that_compare_samples_nothing_is_told(loss):
    trainer_of(mlp(), loss, right).fit(X, Y, **FIT)


class Counted(nn.Module):
    """A loss or metric that changes with each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output, y):
        self.calls += 1
        return nn.functional.cross_entropy(output, y) + self.calls


@pytest.mark.parametrize(
    ("loss", "metric"), [(Counted(), None), ("cross_entropy", {"counted": Counted()})]
)
def test_losses_and_metrics_that_count_their_calls_go_on_counting_from_round_to_round(loss, metric):
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), {"optimizer": "sgd", "lr": 0.0}, loss, metric)
    trainer.fit(X, Y, **FIT, shuffle=None, shuffle_block_data=False)
    name = "loss" if metric is None else "counted"
    first, second = (record[name] for record in trainer.history)
    batches = -(-len(X) // FIT["batch_size"])
    assert second == pytest.approx(first + batches, rel=1e-6)


class WeighedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(()))

    def forward(self, output, y):
        return nn.functional.cross_entropy(output, y) * self.log_weight.exp() - self.log_weight


@pytest.mark.filterwarnings("error")
def test_a_loss_whose_parameters_are_not_trained_is_told_how_they_are():
    with pytest.warns(
        UserWarning, match=("the loss has parameters, which are not trained: docs/models.md")
    ):
        trainer_of(mlp(), WeighedLoss())
    trainer_of(mlp(), WeighedLoss().requires_grad_(False)).fit(X, Y, **FIT)

    def step(model, batch, context):
        x, y = batch
        return model["loss"](model["net"](x), y)

    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build({"net": mlp(), "loss": WeighedLoss()}, SGD, training_step=step)
    assert trainer.fit(X, Y, **FIT)["loss.log_weight"] != 0


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_classes_on_the_last_axis_are_told_where_they_belong(loss):
    steps = np.tile(X[:, None], (1, 4, 1))
    with pytest.raises((ValueError, RuntimeError)) as caught:
        trainer_of(nn.Linear(6, 3), loss).fit(steps, np.tile(Y[:, None], (1, 4)), **FIT)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "The classes of outputs belong on axis 1: return output.movedim(-1, 1)" in told
    net = Wrapped(lambda output: output.movedim(-1, 1))
    net.net = nn.Linear(6, 3)
    trainer_of(net, loss).fit(steps, np.tile(Y[:, None], (1, 4)), **FIT)


def test_bytes_are_class_numbers_of_every_pixel():
    masks = np.tile(Y[:, None], (1, 6)).astype(np.uint8)
    masks[:, 0] = 255
    net = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 1))
    loss = nn.CrossEntropyLoss(ignore_index=255)
    found, expected = (
        trainer_of(net, loss).fit(X, y, **FIT) for y in (masks, masks.astype(np.int64))
    )
    assert_same_bits(found, expected)


NEAR_MISSES = {
    "bce_with_logits": ("loss", r"torch.nn.BCEWithLogitsLoss\(\)"),
    "BCEWithLogitsLoss": ("loss", r"torch.nn.BCEWithLogitsLoss\(\)"),
    "binary_cross_entropy_with_logits": (
        "loss",
        "torch.nn.functional.binary_cross_entropy_with_logits",
    ),
    "mae": ("loss", r"torch.nn.L1Loss\(\)"),
    "mse_loss": ("loss", "mse"),
    "CrossEntropyLoss": ("loss", "cross_entropy"),
    "crossentropy": ("loss", "cross_entropy"),
    "smooth_l1": ("loss", r"torch.nn.SmoothL1Loss\(\)"),
    "huber": ("loss", r"torch.nn.HuberLoss\(\)"),
    "acc": ("metric", "accuracy"),
    "Accuracy": ("metric", "accuracy"),
    "Adam": ("optimizer", "adam"),
    "adam_w": ("optimizer", "adamw"),
    "lrate": ("option", "lr"),
    "learning_rate": ("option", "lr"),
    "wd": ("option", "weight_decay"),
    "decay": ("option", "weight_decay"),
    "criterion": ("build", "loss"),
    "metrics": ("build", "metric"),
    "gpus": ("build", "num_gpu"),
    "epochs": ("fit", "num_epochs"),
    "bs": ("fit", "batch_size"),
    "verbose": ("fit", "progress"),
    "workers": ("trainer", "num_workers"),
    "val_loader": ("fit", "validation_data"),
    "train_dataloaders": ("fit", "x"),
    "class_weight": ("fit", r"build\(class_weight=\)"),
    "metrics_": ("fit", r"build\(metric=\)"),
    "num_workers": ("fit", r"DistributedTrainer\(num_workers=\)"),
    "lr": ("build", "optimizer"),
    "callbacks": ("build", r"fit\(callbacks=\)"),
    "batch_size": ("trainer", r"fit\(batch_size=\)"),
    "max_epochs": ("trainer", r"fit\(num_epochs=\)"),
    "module": ("trainer", r"build\(net=\)"),
    "weight_decay": ("trainer", r"build\(optimizer=\)"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_say_what_was_meant(name):
    what, meant = NEAR_MISSES[name]
    given = {
        "optimizer": SGD,
        "loss": "mse",
        **({what: name} if what in ("loss", "metric") else {}),
    }
    given |= {"optimizer": {"optimizer": name, "lr": 0.1}} if what == "optimizer" else {}
    given |= {"optimizer": {**SGD, name: 0.1}} if what == "option" else {}

    def trained():
        trainer = DistributedTrainer(1, engine="serial", **({name: 1} if what == "trainer" else {}))
        trainer.build(mlp(), **given, **({name: 1} if what == "build" else {}))
        trainer.fit(X, Y, num_epochs=1, **({name: 1} if what == "fit" else {}))

    with pytest.raises((ValueError, TypeError), match=rf"did you mean {meant}\?"):
        trained()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("state_dict", "model().state_dict()"),
        ("module", "model()"),
        ("to", "build(num_gpu=1)"),
        ("train", "fit()"),
        ("score", "evaluate()"),
        ("get_weights", "get_parameters()"),
        ("loss", "history"),
        ("evalute", "evaluate"),
    ],
)
def test_attributes_of_other_libraries_say_what_is_meant(name, meant):
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(AttributeError) as caught:
        getattr(trainer, name)
    assert str(caught.value) == (
        f"'DistributedTrainer' object has no attribute {name!r}; did you mean {meant}?"
    )
    assert not hasattr(trainer, "__unknown__")


def test_errors_of_a_property_are_its_own():
    class Derived(DistributedTrainer):
        @property
        def mine(self):
            return self.callbacks_of_mine

    with pytest.raises(AttributeError, match="'callbacks_of_mine'"):
        Derived(1, engine="serial").mine  # noqa: B018
    assert not hasattr(Derived(1, engine="serial"), "")


def test_what_fit_returns_says_that_it_is_no_history(raises):
    trainer = DistributedTrainer(1, engine="serial", threads=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    with raises(AttributeError, "history"):
        trainer.get_parameters().history  # noqa: B018


def test_keywords_that_nothing_is_like_name_all(raises):
    with raises(TypeError, "return_dict"):
        DistributedTrainer(1, engine="serial").evaluate(X, Y, return_dict=True)


class OfOpenFile(torch.utils.data.Dataset):
    def __init__(self, path):
        self.file = path.open()

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number], Y[number]


def test_an_open_file_is_not_sent_with_its_text(shared_local, tmp_path):
    (tmp_path / "text").write_text("text")
    dataset = OfOpenFile(tmp_path / "text")
    with (
        dataset.file,
        pytest.raises(
            TypeError, match=r"dataset.dataset.file \(_io.TextIOWrapper\) cannot be pickled"
        ),
    ):
        trainer_of(mlp(), engine=shared_local).fit(dataset, **FIT)


def test_element_wise_losses_take_integers():
    net = nn.Linear(6, 1)
    integers = ONE[:, None].astype(int)
    fits = [
        trainer_of(net, nn.BCEWithLogitsLoss()).fit(X, y, **FIT) for y in (ONE[:, None], integers)
    ]
    assert_same_bits(*fits)


@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_nan_in_arrays_is_named_by_its_row(method):
    x = X.copy()
    x[[7, 40], 2] = np.nan
    with pytest.raises(DivergedError) as caught:
        getattr(trainer_of(mlp()), method)(x, Y, **FIT)
    assert "row 7 of x has NaN, the first one in the data." in caught.value.__notes__


class Misspelt(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layr(x)


def of_two(model, batch, context):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y.float()[:, None])


def every_class(output, y):
    """A loss that needs all classes in a batch."""
    if len(y.unique()) < 3:
        raise ValueError("some class is missing")
    return nn.functional.cross_entropy(output, y)


EARLY = {
    "inputs": (nn.Linear(7, 3), "cross_entropy", None, Y, RuntimeError),
    "dtype of y": (mlp(), "cross_entropy", None, Y.astype(np.float32), ValueError),
    "classes from 1": (mlp(), "cross_entropy", None, Y + 1, IndexError),
    "arguments of a loss": (mlp(), lambda output: output.mean(), None, Y, TypeError),
    "a name in forward": (Misspelt(), "cross_entropy", None, Y, AttributeError),
    "a step": (mlp(), None, of_two, Y, RuntimeError),
}


@pytest.fixture
def _no_processes(monkeypatch):
    def start(*_, **__):
        raise AssertionError("processes start")

    monkeypatch.setattr(LocalEngine, "start", start)


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize("name", EARLY)
def test_mistakes_are_errors_before_processes_start(name):
    net, loss, step, y, error = EARLY[name]
    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(net, SGD, loss, training_step=step)
    with pytest.raises(error) as caught:
        trainer.fit(X, y, **FIT)
    assert isinstance(caught.value.__cause__, WorkerTraceback)  # as if a worker had raised it


@pytest.mark.usefixtures("_no_processes")
def test_callbacks_say_what_is_wrong_before_processes_start(tmp_path):
    trainer_of(mlp()).fit(X, Y, **FIT, callbacks=[Checkpoint(tmp_path)])
    trainer = trainer_of(mlp(), engine="local")
    with pytest.raises(FileExistsError, match="has checkpoints of another run"):
        trainer.fit(X, Y, **FIT, callbacks=[Checkpoint(tmp_path)])


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize(
    ("blocks", "shuffled"),
    [(1, {}), (3, {"shuffle": "total"}), (3, {"buffer": BufferSpec("FIRO", 30)})],
)
def test_what_a_batch_of_workers_has_is_no_mistake(blocks, shuffled):
    """Two samples lack classes, and so does the first batch in the order of the data; workers'
    batches do not.
    """
    by_class = np.argsort(Y, kind="stable")
    x, y = (BlockedTensor.from_array(each[by_class], (blocks, 1)) for each in (X, Y))
    trainer = DistributedTrainer(1, engine="local", seed=0)
    trainer.build(mlp(), SGD, every_class)
    with pytest.raises(AssertionError, match="processes start"):
        trainer.fit(x, y, **FIT, **shuffled)


@pytest.mark.usefixtures("_no_processes")
def test_early_tries_change_nothing():
    calls = Notes()  # which the copies of the step share

    def step(model, batch, context):
        calls.append(len(batch[0]))
        np.random.random()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(mlp(), SGD, training_step=step)
    before = trainer.get_parameters()
    drawn = np.random.get_state()[1].copy()
    with pytest.raises(AssertionError, match="processes start"):
        trainer.fit(X, Y, **FIT)
    assert calls == [2]
    assert_same_bits(trainer.get_parameters(), before)
    assert np.array_equal(np.random.get_state()[1], drawn)


@pytest.mark.usefixtures("_no_processes")
def test_nothing_is_tried_here_for_workers_elsewhere(monkeypatch):
    """Where they run, files, variables and devices are others: only they can tell what is wrong."""
    monkeypatch.setattr(LocalEngine, "traits", replace(LocalEngine.traits, starts_processes=False))
    net, loss, step, y, _ = next(iter(EARLY.values()))
    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(net, SGD, loss, training_step=step)
    with pytest.raises(AssertionError, match="processes start"):
        trainer.fit(X, y, **FIT)


class OnFirstUse(torch.utils.data.Dataset):
    """Gets what cannot be pickled when it is read, as data sets open HDF5 files, and notes what was
    read.
    """

    def __init__(self):
        self.lock = None
        self.read = []

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        self.lock = self.lock or threading.Lock()
        self.read.append(number)
        return X[number], Y[number]


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize("validation", [False, True])
def test_early_tries_leave_data_sets_as_they_are(validation):
    dataset = OnFirstUse()
    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(mlp(), SGD, "cross_entropy")
    with pytest.raises(AssertionError, match="processes start"):
        trainer.fit(
            *((X, Y) if validation else (dataset,)),
            **FIT,
            validation_data=dataset if validation else None,
        )
    assert dataset.lock is None
    assert dataset.read == [0]  # to learn what a sample is


class OfTwenty(nn.Module):
    """Takes full batches only."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        if len(x) != 20:
            raise ValueError(f"{len(x)} samples")
        return self.net(x)


@pytest.mark.parametrize(
    "mixed", [{"shuffle": PartialShuffle(30)}, {"buffer": BufferSpec("FIRO", 30)}], ids=named
)
@pytest.mark.parametrize("size", [{"batch_size": 20}, {"num_batches_per_worker": 1}], ids=named)
def test_batches_that_are_cut_from_several_blocks_are_tried_whole(mixed, size, monkeypatch):
    """Of 6 blocks of 10 samples, or 3 of 20; workers train them, and the try before has batches
    like theirs.
    """
    blocks = 6 if "batch_size" in size else 3
    x, y = (BlockedTensor.from_array(each, (blocks, 1)) for each in (X, Y))
    data = x, y
    trainer_of_one("serial").fit(*data, num_epochs=1, progress=False, **size, **mixed)

    def start(*_, **__):
        raise AssertionError("processes start")

    monkeypatch.setattr(LocalEngine, "start", start)
    with pytest.raises(AssertionError, match="processes start"):
        trainer_of_one("local").fit(*data, num_epochs=1, progress=False, **size, **mixed)


def trainer_of_one(engine):
    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
    trainer.build(OfTwenty(), SGD, "cross_entropy")
    return trainer


class Scaled(nn.Linear):
    """Needs a scale, which a callback sets in the workers."""

    def forward(self, x):
        return super().forward(x) * self.scale


class SetScale(WorkerCallback):
    def on_round_start(self, context):
        context.model.scale = 2.0


@pytest.mark.usefixtures("_no_processes")
def test_what_callbacks_prepare_in_workers_is_no_mistake():
    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(Scaled(6, 3), SGD, "cross_entropy")
    with pytest.raises(AssertionError, match="processes start"):
        trainer.fit(X, Y, **FIT, callbacks=[SetScale()])
