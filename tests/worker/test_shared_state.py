"""Objects that have several names when the network is built, one of which gets another object."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint

BATCH = 10
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 1
EPOCHS = 3


class Sharing(nn.Module):
    """Its first batch replaces what ``second`` names, and all batches change both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.make()

    def forward(self, x):
        if self.training:
            self.change(x.detach().mean())
        return self.layer(x) + self.kept()


class BufferAndAttribute(Sharing):
    """As normalizations do that are initialised by their first batch, with the buffer replaced."""

    def make(self):
        self.first = torch.zeros(1)
        self.register_buffer("second", self.first)

    def change(self, mean):
        if not self.second > 0:
            self.layer.bias.data = mean[None]
            self.second = torch.ones(1)
        self.first += 1

    def kept(self):
        return self.first / 10 + self.second


class AttributeAndBuffer(BufferAndAttribute):
    """The attribute is replaced."""

    def make(self):
        self.second = torch.zeros(1)
        self.register_buffer("first", self.second)


class Attributes(BufferAndAttribute):
    def make(self):
        self.first = torch.zeros(1)
        self.second = self.first


class OwnBuffers(BufferAndAttribute):
    def make(self):
        shared = torch.zeros(1)
        self.register_buffer("first", shared, persistent=False)
        self.register_buffer("second", shared, persistent=False)


class OwnBuffersThatStay(OwnBuffers):
    def change(self, mean):
        self.second += 1

    def kept(self):
        return self.first / 10


class Lists(Sharing):
    def make(self):
        self.first = [0.0]
        self.second = {"inner": self.first}

    def change(self, mean):
        if len(self.first) == 1:
            self.second["inner"] = [1.0]
        self.first.append(float(mean))
        self.second["inner"].append(0.5)

    def kept(self):
        return sum(self.first) + sum(self.second["inner"])


KINDS = [BufferAndAttribute, AttributeAndBuffer, Attributes, OwnBuffers, OwnBuffersThatStay, Lists]


def fitted(kind, engine="serial", epochs=EPOCHS, **options):
    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
    trainer.build(kind(), {"optimizer": "sgd", "lr": 0.05}, "mse")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, **still, **options)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_the_plain_loop(engine, kind, tmp_path):
    net = kind()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    fitted(kind, engine, epochs=1, callbacks=[Checkpoint(tmp_path)])
    for trainer in (fitted(kind, engine), fitted(kind, engine, resume=tmp_path)):
        model = trainer.model()
        assert torch.equal(model(X), net.eval()(X))
        assert (model.first, model.second) == (net.first, net.second)


def test_two_buffers_in_the_state_dict_are_an_error():
    class Both(BufferAndAttribute):
        def make(self):
            super().make()
            self.register_buffer("first", self.__dict__.pop("first"))

    with pytest.raises(ValueError, match="'second' and 'first' are one tensor in the network"):
        fitted(Both)


class Views(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("sums", torch.zeros(3))
        self.view = view(self)

    def forward(self, x):
        return self.layer(x)


def built(net):
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(net, {"optimizer": "sgd", "lr": 0.05}, "mse")


@pytest.mark.parametrize(
    "view",
    [
        lambda net: net.layer.weight.data,
        lambda net: [net.layer.weight.detach()[0, 1:]],
        lambda net: net.layer.weight.detach().numpy(),
    ],
)
def test_a_view_of_a_trained_parameter_is_an_error(view):
    with pytest.raises(
        ValueError, match=r"'view' of the network shares the memory of 'layer\.weight'"
    ):
        built(Views(view))


class ViewsOfAttributes(Views):
    def __init__(self, sums):
        super().__init__(lambda net: None)
        del self.view
        self.totals = sums
        self.view = self.totals[1:]


def test_a_view_of_a_buffer_or_attribute_is_a_warning():
    with pytest.warns(UserWarning, match="'view' of the network shares the memory of 'sums'"):
        built(Views(lambda net: net.sums[1:]))
    for sums in (torch.zeros(3), np.zeros(3)):
        with pytest.warns(UserWarning, match="'view' of the network shares the memory of 'totals'"):
            built(ViewsOfAttributes(sums))


def test_what_only_looks_like_a_view_is_none():
    built(Views(lambda net: net.layer.weight.data.clone()))
    built(nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.LSTM(4, 4), nn.Linear(4, 1)))
    frozen = Views(lambda net: net.layer.weight.data)
    frozen.layer.requires_grad_(False)
    frozen.other = nn.Linear(1, 1)
    with pytest.warns(UserWarning, match=r"shares the memory of 'layer\.weight'"):
        built(frozen)
