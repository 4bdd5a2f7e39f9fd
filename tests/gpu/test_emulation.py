"""Emulated devices refuse what real ones refuse, and count what waits for them."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients, Merge
from compss_train.training import build_arguments
from tests.emulated_gpu import tensors
from tests.gpu.conftest import REAL
from tests.helpers.models import assert_same_bits, blocked, classification

pytestmark = pytest.mark.skipif(REAL, reason="these are emulated devices")

ON_DEVICE = {"device": "cuda:0"}
REFUSED = {
    "two devices": lambda: torch.ones(3, **ON_DEVICE) + torch.ones(3),
    "two GPUs": lambda: torch.ones(3, **ON_DEVICE) + torch.ones(3, device="cuda:1"),
    "numpy": lambda: torch.ones(3, **ON_DEVICE).numpy(),
    "pickle": lambda: pickle.dumps(torch.ones(3, **ON_DEVICE)),
    "a generator of the CPU": lambda: torch.rand(3, generator=torch.Generator(), **ON_DEVICE),
    "a third device": lambda: torch.ones(3, device="cuda:2"),
    "a network on a device, samples on the CPU": lambda: nn.Linear(3, 2).to("cuda")(
        torch.ones(1, 3)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_real_devices_refuse_is_refused(name):
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[name]()


def test_generators_are_those_of_the_device():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    drawn = torch.rand(4, **ON_DEVICE)
    assert torch.equal(torch.get_rng_state(), before)
    own = torch.Generator(device="cuda").manual_seed(5)
    assert torch.equal(torch.rand(4, generator=own, **ON_DEVICE).cpu(), drawn.cpu())


SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
ADAM = {"optimizer": "adam", "lr": 0.01}
STEPS = {
    **{
        name: ({"optimizer": name, "lr": 0.01}, None, {})
        for name in ("sgd", "adam", "nadam", "adadelta")
    },
    "with momentum": (SGD, None, {}),
    "clipped": (ADAM, "accuracy", {"gradients": Gradients(clip_norm=1.0)}),
    "skipping": (ADAM, "accuracy", {"gradients": Gradients(clip_norm=1.0, on_nan="skip")}),
    "scheduled, in bf16": (
        SGD,
        "accuracy",
        {"schedule": lambda epoch: 0.9**epoch, "precision": "bf16"},
    ),
}


def counted(
    batches: int, optimizer: object, metric: str | None, options: dict, kept="keep"
) -> dict[str, int]:
    """Count what one worker does in two rounds, of which the second one begins with the optimizer's
    state.
    """
    x, y = classification(samples=5 * batches)
    net = nn.Sequential(nn.Linear(x.shape[1], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(net, optimizer, "cross_entropy", metric, num_gpu=1, **options)
        tensors.counts.clear()
        trainer.fit(
            x, y, num_epochs=2, batch_size=5, merge=Merge(optimizer_state=kept), progress=False
        )
    return dict(tensors.counts)


@pytest.mark.parametrize("name", STEPS)
def test_waits_and_copies_do_not_grow_with_batches_nor_waits_with_tensors(name):
    """A round waits for its parameters, its optimizer's state, and what it has measured."""
    few = counted(8, *STEPS[name])
    many = counted(16, *STEPS[name])
    assert few == many
    assert many["waits"] <= 2 * 7


def test_moments_that_workers_average_go_to_a_gpu_without_waiting():
    assert counted(8, ADAM, None, {}, "average")["waits"] <= 2 * 7


def trained(batches_in_block: int, merge: object = "synchronous") -> tuple[dict, int]:
    """Return the parameters after three epochs on two blocks, and the number of copies to the
    device.
    """
    x, y = classification(samples=10 * batches_in_block)
    torch.manual_seed(0)
    with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(nn.Linear(x.shape[1], 3), SGD, "cross_entropy", num_gpu=1)
        tensors.counts.clear()
        trainer.fit(*blocked(x, y, 2), num_epochs=3, batch_size=5, merge=merge, progress=False)
        return trainer.get_parameters(), tensors.counts["to_device"]


@pytest.mark.parametrize("merge", ["synchronous", Merge(every=8, unit="batches")])
def test_blocks_stay_on_a_gpu_where_half_of_it_stays_free(monkeypatch, merge):
    (_, few) = trained(8, merge)
    (resident, many) = trained(24, merge)
    assert tensors.memory.allocated[0] == 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50, 100))
    copied, most = trained(24, merge)
    assert_same_bits(resident, copied)
    if merge == "synchronous":
        assert few == many
    assert most >= many + 3 * 2 * 24 - 4 * 3 * 2


def test_blocks_leave_a_gpu_that_has_too_little_memory_beside_them(monkeypatch):
    x = np.ones((60, 500), np.float32)
    y = np.zeros(60, np.int64)
    for limit in (100_000, 130_000):  # x has 120,000 bytes
        monkeypatch.setenv("EMULATED_GPU_BYTES", str(limit))
        with DistributedTrainer(1, engine="serial", threads=1) as trainer:
            trainer.build(nn.Linear(500, 3), ADAM, "cross_entropy", num_gpu=1)
            trainer.fit(x, y, num_epochs=3, batch_size=2, progress=False)
            assert trainer.trained_samples() == 3 * 60


def test_an_evaluation_takes_the_memory_of_the_blocks(monkeypatch):
    """Here its batch needs 40,000 bytes for hidden values; x has 100,000, a batch of the training
    4,000.
    """
    x, y = classification(samples=100)
    x = np.tile(x, (1, 250 // x.shape[1] + 1))[:, :250].astype(np.float32)
    losses = []
    for limit in (2**30, 150_000):
        monkeypatch.setenv("EMULATED_GPU_BYTES", str(limit))
        torch.manual_seed(0)
        with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
            net = nn.Sequential(nn.Linear(250, 4), Widened(), nn.Linear(100, 3))
            trainer.build(net, {"optimizer": "sgd", "lr": 1e-4}, "cross_entropy", num_gpu=1)
            options = {
                "num_epochs": 3,
                "batch_size": 4,
                "validation_data": (x, y),
                "progress": False,
            }
            trainer.fit(x, y, **options)
            losses.append([record["val_loss"] for record in trainer.history])
    assert losses[0] == losses[1]


class Widened(nn.Module):
    def forward(self, x):
        return x.repeat(1, 25)


class Strict(nn.Module):
    """Refuses NaN; only its gradient is NaN where a target is 9."""

    def forward(self, output, target):
        if output.isnan().any():
            raise ValueError("NaN")
        bad = torch.where(target == 9, 0.0, 1.0)
        return (
            nn.functional.cross_entropy(output, target % 3)
            + 0 * (output[:, 0] * bad).pow(2).sqrt().sum()
        )


def test_a_gpu_learns_a_round_again_where_batches_are_to_be_skipped():
    """Only in the first of the rounds with such batches, whose later batches are learnt from
    NaN.
    """
    x, y = classification(samples=60)
    y[12] = 9
    results = []
    net = nn.Sequential(nn.Linear(x.shape[1], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    for gpus in (0, 1):
        with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
            options = {"gradients": Gradients(accumulate=2, on_nan="skip"), "num_gpu": gpus}
            trainer.build(net, ADAM, Strict(), "accuracy", **options)
            trainer.fit(x, y, num_epochs=3, batch_size=5, progress=False)
            assert [record["skipped_batches"] for record in trainer.history] == [1, 1, 1]
            assert trainer.trained_samples() == 60 * 3 + gpus * 60
            results.append(
                (trainer.get_parameters(), [record["loss"] for record in trainer.history])
            )
    assert_same_bits(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_too_little_memory_names_worker_batch_and_remedies(monkeypatch):
    x, y = classification(samples=60)
    monkeypatch.setenv("EMULATED_GPU_BYTES", "45000")
    with DistributedTrainer(2, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(
            nn.Sequential(nn.Linear(x.shape[1], 500), nn.Linear(500, 3)),
            SGD,
            "cross_entropy",
            num_gpu=2,
        )
        with pytest.raises(torch.OutOfMemoryError) as caught:
            trainer.fit(x, y, num_epochs=1, batch_size=30, progress=False)
    [note] = [note for note in caught.value.__notes__ if "too little memory" in note]
    assert note.startswith(
        "cuda:0 has too little memory for batches of 30 samples in round 0 on worker 0"
    )


def test_a_fit_is_checked_on_a_gpu():
    x, y = classification(samples=60)

    class OnlyOnGpu(nn.Linear):
        def forward(self, x):
            if x.device.type == "cpu":
                raise NotImplementedError("no kernel for the CPU")
            return super().forward(x)

    with DistributedTrainer(2, engine="serial", threads=1) as trainer:
        trainer.build(OnlyOnGpu(x.shape[1], 3), SGD, "cross_entropy", num_gpu=1)
        trainer.check_fit(x, y, num_epochs=1, batch_size=10)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            trainer.check_fit(x[:, :2], y, num_epochs=1, batch_size=10)


def test_double_precision_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(build_arguments, "gpu", lambda: "mps")
    with DistributedTrainer(1, engine="serial") as trainer:
        with pytest.raises(ValueError, match=r"MPS lacks; give net.float\(\)"):
            trainer.build(nn.Linear(6, 3).double(), ADAM, "cross_entropy", num_gpu=1)
        trainer.build(nn.Linear(6, 3).double(), ADAM, "cross_entropy")
        trainer.build(nn.Linear(6, 3), ADAM, "cross_entropy", num_gpu=1)


def test_double_precision_results_are_arrays():
    x, y = classification(samples=60)
    with DistributedTrainer(1, engine="serial", threads=1) as trainer:
        trainer.build(nn.Linear(x.shape[1], 3).double(), ADAM, "cross_entropy", num_gpu=2)
        trained = trainer.fit(x.astype(np.float64), y, num_epochs=1, batch_size=10, progress=False)
    assert {array.dtype for array in trained.values()} == {np.dtype(np.float64)}
